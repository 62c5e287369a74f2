"""Keeps the config set of one device class at hand: from disk at once, from the service behind the scenes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable

from tilewright import forks, store_calls
from tilewright.artifact import Artifact
from tilewright.backoff import Backoff
from tilewright.cache import DiskCache, default_folder
from tilewright.catalog import Catalog
from tilewright.errors import ArtifactError, ServiceError, TilewrightError
from tilewright.fetch import Fetcher
from tilewright.options import StartOptions
from tilewright.sets import ConfigSet
from tilewright.stock import Stock

_NOTHING_TUNED = 404
_WRITE_S = 5.0


class SetKeeper:
    """The config set of one device class, refreshed by one thread; safe to share between threads and forks.

    Attributes:
        catalog: the set as it stands; None before the first one came.
        problem: why the last look at the service failed; empty where it did not.
        rounds: looks at the service so far.

    Args:
        fetcher: to the service.
        device_class: whose set.
        changed: called whenever there is another set, or an artifact that was missing.
        chores: called after every look at the service that it answered.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        device_class: str,
        options: StartOptions,
        changed: Callable[[], None],
        chores: Callable[[], None] = lambda: None,
    ) -> None:
        self.catalog: Catalog | None = None
        self.problem = ""
        self.rounds = 0
        self._fetcher, self._device_class, self._options = fetcher, device_class, options
        self._changed, self._chores = changed, chores
        self._disk = DiskCache(options.cache_dir or default_folder())
        self._stock = Stock(self._disk)
        self._name = f"{fetcher.url} {device_class} {options.pin or 'current'}"
        self._kept: bytes | None = None  # as on disk, where another process may remove it
        self._wanting = False
        self._closed = False
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """Of this process's own: a lock, and a thread once it is needed."""
        self._turn = threading.Condition()
        self._backoff = Backoff()
        self._looking = self._writing = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Take the set from disk; where there is none wait for the service, at most the timeout."""
        self._load()
        if not self._options.offline:
            self._ensure_thread(0.0 if self.catalog is None else random.uniform(0.05, 0.5))
            with self._turn:
                self._turn.wait_for(
                    lambda: self.catalog or self.rounds or self._closed, self._options.timeout
                )

    def refresh(self, timeout: float) -> bool:
        """Look at the service now, together with whoever else asked for it; True if it answered in time.

        False at once where it failed so often that it is not asked for a while.
        """
        if self._options.offline or self._closed or self._backoff.open:
            return False
        with self._turn:
            goal = self.rounds + (2 if self._looking else 1)  # a look under way may be too early
        self.rouse()
        return self._wait(goal, timeout) and not self.problem

    def artifact(self, digest: str) -> Artifact | None:
        """A kernel of the set, checked against its digest; None where it is not here or damaged.

        What is missing is fetched behind the scenes.
        """
        if self._options.offline:
            self._note_use()
        found = self._stock.artifact(digest)
        if found is None:
            self.rouse()
        return found

    def rouse(self) -> None:
        """Look at the service soon, without waiting for it."""
        if not self._options.offline:
            with self._turn:
                self._wanting = True
                self._turn.notify_all()
            self._ensure_thread(0.0)

    def close(self) -> None:
        """Stop looking at the service; what has arrived is still written to disk."""
        with self._turn:
            self._closed = True
            self._turn.notify_all()
            self._turn.wait_for(lambda: not self._writing, _WRITE_S)

    def _ensure_thread(self, delay: float) -> None:
        with self._turn:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._run, args=(delay,), name="tilewright-sets", daemon=True
                )
                self._thread.start()

    def _wait(self, rounds: int, timeout: float) -> bool:
        with self._turn:
            return self._turn.wait_for(lambda: self.rounds >= rounds or self._closed, timeout)

    def _run(self, delay: float) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(self._roused, delay)
                if self._closed:
                    return
                self._wanting, self._looking = False, True
            delay = self._round()

    def _roused(self) -> bool:
        return self._closed or (self._wanting and not self._backoff.open)

    def _round(self) -> float:
        """One look at the service; gives the seconds until the next."""
        self.problem = self._why_not()
        if self.problem:
            pause = self._backoff.failed()
        else:
            self._backoff.succeeded()
            pause = self._options.refresh_s * random.uniform(0.9, 1.1)
        with self._turn:
            self.rounds += 1
            self._looking = False
            self._turn.notify_all()
        return pause

    def _why_not(self) -> str:
        """Look at the service; why that failed, empty where it did not."""
        try:
            self._look()
        except TilewrightError as error:
            return str(error) or type(error).__name__
        except Exception as error:  # NOTE: else the thread would end, and nobody starts another one
            with forks.importing():
                import logging  # a start that goes well does without

            logging.getLogger("tilewright.client").exception("a look at %s broke", self._fetcher.url)
            return repr(error)
        return ""

    def _look(self) -> None:
        self._note_use()
        content = self._new_set()
        catalog = self.catalog if content is None else self._catalog(content)
        if catalog is not None:
            self._take(catalog, content)
        self._disk.prune(self._options.cache)
        self._chores()

    def _take(self, catalog: Catalog, content: bytes | None) -> None:
        fetched = self._fetch_artifacts(catalog)
        if content is None and not fetched:
            return
        with self._turn:
            self._stock.take(fetched)
            self.catalog = catalog
            self._changed()
            self._writing = True
            self._turn.notify_all()  # whoever waits goes on while the disk is written to
        try:
            self._write(catalog, content, fetched)
        finally:
            with self._turn:
                self._writing = False
                self._turn.notify_all()

    def _write(self, catalog: Catalog, content: bytes | None, fetched: Iterable[str]) -> None:
        self._stock.write(fetched)
        if content is not None:
            self._kept = catalog.config_set.digest.encode() + b"\n" + content
            self._disk.name(self._name, self._kept)

    def _new_set(self) -> bytes | None:
        """The set that is served where it is another one than the one at hand.

        Raises:
            TilewrightError: the service did not answer, or not with a sound set.
        """
        here = self.catalog.config_set.digest if self.catalog else None
        pin = self._options.pin
        if pin:
            return None if here == pin else self._fetcher.send(store_calls.config_set(pin)).content
        call = store_calls.current_set(self._device_class, f'"{here}"' if here else None)
        try:
            answer = self._fetcher.send(call)
        except ServiceError as error:
            if error.status == _NOTHING_TUNED:
                return None
            raise
        return answer.content if answer else None

    def _fetch_artifacts(self, catalog: Catalog) -> dict[str, bytes]:
        entries = catalog.config_set.entries
        missing = self._stock.missing(entry.artifact for entry in entries if not entry.use_vendor)
        if not missing:
            return {}
        everything = len(missing) == len({entry.artifact for entry in entries})
        return self._fetcher.bundle(catalog.config_set.digest, missing, everything)

    def _load(self) -> None:
        kept = self._disk.named(self._name)
        if kept is None:
            return
        digest, _, content = kept.partition(b"\n")
        try:
            self.catalog = self._catalog(content, digest.decode("ascii", "replace"))
        except TilewrightError:  # damaged: as if it were not there
            return
        self._kept = kept
        self._note_use()

    def _note_use(self) -> None:
        if self._kept is not None:
            self._disk.note_use(self._name, self._kept)

    def _catalog(self, content: bytes, digest: str | None = None) -> Catalog:
        """A catalog of a set that was checked.

        Raises:
            ArtifactError: it is not the set it claims to be, or not the pinned one, or of another class.
        """
        found = ConfigSet.from_bytes(content, self._options.pin or digest)
        if found.device_class != self._device_class:
            raise ArtifactError(f"a config set of {found.device_class} was sent to a {self._device_class}")
        return Catalog(found)
