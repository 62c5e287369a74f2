"""What device classes are served, remembered for as long as nothing is committed to the database."""

from __future__ import annotations

import functools
from collections.abc import Hashable

from service.results.quality import ResultQuality
from tilewright.config_sets.lookup import Catalog
from tilewright.schema.config_set import ConfigSet
from tuner.store import exchange, sets
from tuner.store.database import Changes, Store

_CATALOGS = 8


class ServedSets:
    """Digests of what is served, and config sets made ready to be asked; safe to share.

    A client that asks whether its set is still served costs no transaction that way, and no thread.

    Attributes:
        catalog: ``catalog(digest)`` is a set that exists, ready to be asked.
    """

    def __init__(self, store: Store, quality: ResultQuality) -> None:
        self._store, self._quality = store, quality
        self._changes = Changes(store)
        self._digests: dict[str, tuple[Hashable, str]] = {}
        self.catalog = functools.lru_cache(_CATALOGS)(self._catalog)

    def state(self, device_class: str) -> Hashable | None:
        """Equal states mean that a device class is served the same; None where nobody can tell."""
        stamp = self._changes.stamp()
        return None if stamp is None else (stamp, self._quality.state(device_class))

    def known(self, device_class: str) -> str | None:
        """The digest that a device class is served; None where the database has to be asked."""
        state, digest = self._digests.get(device_class, (None, None))
        return digest if state is not None and state == self.state(device_class) else None

    def remember(self, device_class: str, state: Hashable | None, digest: str) -> None:
        """Note what was served; ``state`` was taken before the database was asked."""
        self._digests[device_class] = state, digest

    def close(self) -> None:
        """Let go of the database."""
        self._changes.close()

    def _catalog(self, digest: str) -> Catalog:
        with self._store.read() as session:
            content = sets.content(session, digest)
        assert content is not None
        return Catalog(exchange.current_set(ConfigSet.from_bytes(content, digest)))
