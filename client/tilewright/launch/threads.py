"""Worker threads that stay alive between host launches: waking one costs microseconds, not a start."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

_Done = SimpleQueue[BaseException | None]
_Inbox = SimpleQueue[tuple[Callable[[], object], _Done]]

_inboxes: list[_Inbox] = []
_growing = threading.Lock()


def run_together(calls: Sequence[Callable[[], object]]) -> None:
    """Run all calls at the same time, the first on the caller's thread, and return when all are done.

    The calls must release the GIL to overlap. Launches from several threads may share the workers.

    Raises:
        BaseException: whatever one of the calls raised.
    """
    done: _Done = SimpleQueue()
    others = calls[1:]
    for inbox, call in zip(_workers(len(others)), others, strict=True):
        inbox.put((call, done))
    try:
        calls[0]()
    finally:
        errors = [done.get() for _ in others]
    for error in errors:
        if error is not None:
            raise error


def _workers(count: int) -> list[_Inbox]:
    if len(_inboxes) < count:
        with _growing:
            while len(_inboxes) < count:
                inbox: _Inbox = SimpleQueue()
                name = f"tilewright-{len(_inboxes) + 1}"
                threading.Thread(target=_work, args=(inbox,), name=name, daemon=True).start()
                _inboxes.append(inbox)
    return _inboxes[:count]


def _work(inbox: _Inbox) -> None:
    while True:
        call, done = inbox.get()
        try:
            call()
        except BaseException as error:  # handed to the launching thread, which raises it
            done.put(error)
        else:
            done.put(None)


def _forget() -> None:
    """A forked child has none of its parent's threads, and maybe a lock that one of them held."""
    global _growing
    _growing = threading.Lock()
    _inboxes.clear()


os.register_at_fork(after_in_child=_forget)
