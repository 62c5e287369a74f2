"""Objects that must set themselves right in a forked child: locks that another thread held, lost threads."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class ForkAware(Protocol):
    """What :func:`watch` takes."""

    def after_fork(self) -> None:
        """The process was forked, this is the child: only the forking thread is left."""


_watched: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def watch(one: ForkAware) -> None:
    """Call ``one.after_fork()`` in every forked child as long as it lives."""
    _watched.add(one)


def _reset() -> None:
    for one in list(_watched):
        one.after_fork()


os.register_at_fork(after_in_child=_reset)
