"""What the store refuses; every message says what to do."""

from __future__ import annotations

from tilewright.errors import TilewrightError


class StoreError(TilewrightError):
    """The database cannot be opened, or what is asked of it breaks a rule."""


class SchemaTooNew(StoreError):
    """The database was migrated by a newer release than this one."""


class IdempotencyConflict(StoreError):
    """An idempotency key came again with another request."""


class JobTaken(StoreError):
    """The job is not, or no longer, this recorder's to write: stop working on it."""
