"""The config set of a device class: how a client fetches, caches and refreshes it."""

from __future__ import annotations

import functools
import math
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tilewright import forks
from tilewright.artifact import Artifact
from tilewright.artifact.cache import ArtifactStore, DiskCache
from tilewright.backoff import Backoff, jitter
from tilewright.config_sets.lookup import Catalog
from tilewright.config_sets.options import StartOptions
from tilewright.errors import ArtifactError, ServiceError, TilewrightError, TrustError
from tilewright.http.calls import MOST_SECONDS
from tilewright.http.fetch import Fetcher
from tilewright.http.sets import SetAnswer, signed_set, split
from tilewright.lazy import LazyModule
from tilewright.schema.config_set import ConfigSet

if TYPE_CHECKING:
    import logging
else:
    logging = LazyModule("logging")  # a start that goes well does without

_NOTHING_TUNED = 404
_WRITE_S = 5.0


def _wake(condition: threading.Condition) -> None:
    with condition:
        condition.notify_all()


class ConfigSetRefresher:
    """The config set of one device class, refreshed by one thread; safe to share between threads and forks.

    Attributes:
        config_set, catalog: the current set, and its catalog; None before the first one came.
        problem: why the last look at the service failed; empty if it did not.
        rounds: looks at the service so far.
        forked: whether this process was forked since, and must :meth:`resume`.

    Args:
        fetcher: to the service.
        device_class: whose set.
        on_change: called whenever there is another set, or an artifact that was missing.
        on_refresh: called after every look at the service that it answered.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        device_class: str,
        options: StartOptions,
        on_change: Callable[[], None],
        on_refresh: Callable[[], None] = lambda: None,
    ) -> None:
        self.catalog: Catalog | None = None
        self.config_set: ConfigSet | None = None
        self.problem = ""
        self.rounds = 0
        self._fetcher, self._device_class, self._options = fetcher, device_class, options
        self._on_change, self._on_refresh = on_change, on_refresh
        self._disk = DiskCache(options.folder)
        self._artifacts = ArtifactStore(self._disk)
        self._name = f"{fetcher.url} {device_class} {options.pin or 'current'}"
        self._kept: bytes | None = None  # as on disk, where another process may remove it
        self._requested = False
        self._closed = False
        self._waker: weakref.finalize[..., ConfigSetRefresher] | None = None
        self.after_fork()
        self.forked = False
        forks.watch(self)

    def after_fork(self) -> None:
        """Give the child a lock of its own, and a thread once it is needed."""
        self._condition = threading.Condition()
        self._backoff = Backoff()
        self._looking = self._writing = self._has_thread = False
        if self._waker:
            self._waker.detach()  # its lock may be held by a lost thread
        self.forked = True

    def start(self, most_s: float = math.inf) -> None:
        """Take the set from disk; else wait for the service, at most ``start_timeout`` and ``most_s``
        seconds."""
        self._load()
        if not self._options.offline:
            self._ensure_thread(0.0 if self.catalog is None else jitter(0.05, 0.5))
            with self._condition:
                limit = min(self._options.start_timeout, most_s)
                self._condition.wait_for(lambda: self.catalog or self.rounds or self._closed, limit)

    def resume(self) -> None:
        """Look at the service from a forked child too: the threads of its parent do not run there."""
        self.forked = False
        if not self._options.offline:
            self._ensure_thread(0.0 if self.catalog is None else self._pause())

    def refresh(self, timeout: float) -> bool:
        """Look at the service now, once for all threads that ask; return whether it answered in time.

        False at once if it failed so often that it is not asked for a while.
        """
        if self._options.offline or self._closed or self._backoff.open:
            return False
        with self._condition:
            goal = self.rounds + (2 if self._looking else 1)  # a look under way may be too early
        self.request_refresh()
        return self._wait(goal, timeout) and not self.problem

    def artifact(self, digest: str) -> Artifact | None:
        """A kernel of the set, checked against its digest; None if it is missing or damaged.

        A missing kernel is fetched in the background.
        """
        if self._options.offline:
            self._note_use()
        found = self._artifacts.artifact(digest)
        if found is None:
            self.request_refresh()
        return found

    def request_refresh(self) -> None:
        """Look at the service soon; return at once."""
        if not self._options.offline:
            with self._condition:
                self._requested = True
                self._condition.notify_all()
            self._ensure_thread(0.0)

    def close(self) -> None:
        """Stop looking at the service; what has arrived is still written to disk."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
            self._condition.wait_for(lambda: not self._writing, _WRITE_S)

    def _ensure_thread(self, delay: float) -> None:
        with self._condition:
            if self._has_thread or self._closed:
                return
            self._has_thread = True  # at once: a signal handler or a finalizer may come here meanwhile
            run = functools.partial(self._run, weakref.ref(self), self._condition, delay)
            self._waker = weakref.finalize(self, _wake, self._condition)
            self._waker.atexit = False
            try:
                forks.start_thread(run, "tilewright-sets")
            except BaseException:
                self._has_thread = False
                raise

    def _wait(self, rounds: int, timeout: float) -> bool:
        seconds = min(timeout, MOST_SECONDS)
        with self._condition:
            return self._condition.wait_for(lambda: self.rounds >= rounds or self._closed, seconds)

    @staticmethod
    def _run(used: weakref.ref[ConfigSetRefresher], condition: threading.Condition, delay: float) -> None:
        """Look at the service until the refresher is closed, or nobody uses it any more."""

        def may_look() -> bool:
            refresher = used()
            return refresher is None or refresher._may_look()

        while True:
            with condition:
                condition.wait_for(may_look, delay)
                refresher = used()
                if refresher is None or refresher._closed:
                    return
                refresher._requested, refresher._looking = False, True
            delay = refresher._round()
            del refresher  # while the thread waits, a client without a close() can go

    def _may_look(self) -> bool:
        return self._closed or (self._requested and not self._backoff.open)

    def _round(self) -> float:
        """Look at the service once and return the seconds until the next look."""
        self.problem = self._why_not()
        if self.problem:
            pause = self._backoff.failed()
        else:
            self._backoff.succeeded()
            pause = self._pause()
        with self._condition:
            self.rounds += 1
            self._looking = False
            self._condition.notify_all()
        return pause

    def _pause(self) -> float:
        return self._options.refresh_s * jitter(0.9, 1.1)

    def _why_not(self) -> str:
        """Look at the service and return why that failed; empty if it did not."""
        try:
            self._look()
        except TrustError as error:
            if str(error) != self.problem:
                logging.getLogger("tilewright.client").warning("%s", error)
            return str(error)
        except TilewrightError as error:
            return str(error) or type(error).__name__
        except Exception as error:  # NOTE: otherwise the thread would end for good
            logging.getLogger("tilewright.client").exception("a look at %s broke", self._fetcher.url)
            return repr(error)
        return ""

    def _look(self) -> None:
        self._note_use()
        answer = self._new_set()
        found = self.config_set if answer is None else self._of_class(answer.config_set)
        if found is not None:
            self._take(found, answer)
        self._disk.prune(self._options.bounds)
        self._on_refresh()

    def _take(self, found: ConfigSet, answer: SetAnswer | None) -> None:
        fetched = self._fetch_artifacts(found)
        if answer is None and not fetched:
            return
        catalog = Catalog.of(found)
        with self._condition:
            self._artifacts.take(fetched)
            self.config_set, self.catalog = found, catalog
            self._on_change()
            self._writing = True
            self._condition.notify_all()  # threads that wait go on while the disk is written to
        try:
            self._write(answer, fetched)
        finally:
            with self._condition:
                self._writing = False
                self._condition.notify_all()

    def _write(self, answer: SetAnswer | None, fetched: Iterable[str]) -> None:
        self._artifacts.write(fetched)
        if answer is not None:
            self._kept = answer.to_file()
            self._disk.name(self._name, self._kept)

    def _new_set(self) -> SetAnswer | None:
        """The set that is served now; None if it equals the current one, or if nothing is tuned.

        Raises:
            TilewrightError: the service did not answer, or not with a sound set.
        """
        known = self.config_set.digest if self.config_set else None
        pin = self._options.pin
        if pin:
            return None if known == pin else self._fetcher.config_set(pin)
        try:
            return self._fetcher.current_set(self._device_class, f'"{known}"' if known else None)
        except ServiceError as error:
            if error.status == _NOTHING_TUNED:
                return None
            raise

    def _fetch_artifacts(self, found: ConfigSet) -> dict[str, bytes]:
        missing = self._artifacts.missing(entry.artifact for entry in found.entries if entry.may_run)
        if not missing:
            return {}
        everything = len(missing) == len({entry.artifact for entry in found.entries})
        return self._fetcher.bundle(found.digest, missing, everything)

    def _load(self) -> None:
        kept = self._disk.named(self._name)
        if kept is None:
            return
        try:
            self.config_set = self._of_class(self._signed_set(kept))
        except TilewrightError as error:  # damaged, or signed by no key to trust: as if it were not there
            if self._options.offline and isinstance(error, TrustError):  # else the service is asked
                logging.getLogger("tilewright.client").warning("%s", error)
            return
        self.catalog, self._kept = Catalog.of(self.config_set), kept
        self._note_use()

    def _note_use(self) -> None:
        if self._kept is not None:
            self._disk.note_use(self._name, self._kept)

    def _signed_set(self, kept: bytes) -> ConfigSet:
        """The set that a file of the cache holds.

        Raises:
            ArtifactError: it is damaged, or not the pinned one.
            TrustError: the key of the service did not sign it.
        """
        signature, content = split(kept)
        return signed_set(content, signature, self._fetcher.service_key, self._options.pin, first=False)

    def _of_class(self, found: ConfigSet) -> ConfigSet:
        """A set of the device class of this client.

        Raises:
            ArtifactError: it is of another class.
        """
        if found.device_class != self._device_class:
            raise ArtifactError(
                f"a config set of {found.device_class} was sent to a {self._device_class}; check the URL"
            )
        return found
