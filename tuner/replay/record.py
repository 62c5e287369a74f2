"""Record a space: measure every config of a family for one problem and write a T4 file.

Results go to a journal, one JSON line for each event, so that a kill loses at most the last line. The first
line describes the recording; every other line is a result of the T4 format, or the provenance of the results
after it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

from kernels.base.family import ConfigSpace
from kernels.base.knobs import Knob
from tilewright import __version__
from tilewright.artifact import Artifact
from tilewright.errors import InvalidProblem
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Outcome, TrialResult
from tuner.job.context import trial_timeout_s
from tuner.measure.stats import median
from tuner.measure.timing import METHOD, PRUNE_RATIO
from tuner.replay import formats
from tuner.replay.space import Entry, RecordedSpace, SpaceError, assemble
from tuner.search.points import valid_points
from tuner.workers.builder import Builder, Compiled


class Journal:
    """A file of results, which grows by appending.

    Attributes:
        entries: results by config, in the order in which they were measured.
        provenance: provenance of the results; empty before the first.
    """

    def __init__(self, path: Path, head: Mapping[str, Any], resume: bool) -> None:
        """Begin a journal, or continue the one at ``path`` if ``resume`` is set and it exists.

        Raises:
            SpaceError: it exists and ``resume`` is not set, it records something else, or it is no journal.
        """
        self.entries: dict[Config, Entry] = {}
        self.provenance: dict[str, Any] = {}
        self._path = path
        self._family = str(head["family"])
        old = path.exists()
        if old and not resume:
            raise SpaceError(f"{path} holds an interrupted recording: go on with --resume or remove it")
        if old:
            self._load(head)
        else:
            self._append(head)

    def add(self, config: Config, entry: Entry) -> None:
        """Append a result; the operating system has it when this returns."""
        self.entries[config] = entry
        self._append(formats.result(dict(config.knobs), entry))

    def set_provenance(self, provenance: Mapping[str, Any]) -> None:
        """Set the provenance of the results.

        Raises:
            SpaceError: earlier results have another provenance.
        """
        if self.provenance:
            changed = [key for key, value in provenance.items() if self.provenance.get(key) != value]
            if changed:
                names = ", ".join(changed)
                raise SpaceError(
                    f"{names} changed since the recording began: remove the journal and start again"
                )
            return
        self.provenance = dict(provenance)
        self._append({"provenance": self.provenance})

    def _append(self, event: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(event, separators=(",", ":")) + "\n")

    def _load(self, head: Mapping[str, Any]) -> None:
        data = self._path.read_bytes()
        if not data:  # a kill came before the first line
            self._append(head)
            return
        whole = data[: data.rfind(b"\n") + 1]
        try:
            if not whole:
                raise ValueError("its first line is not whole")
            self._take_all(head, *map(json.loads, whole.splitlines()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SpaceError(
                f"{self._path} is no journal of a recording, or damaged ({error}):"
                " choose another file or remove it"
            ) from error
        # NOTE: a kill may have truncated the last line; the next event must not be appended to it.
        os.truncate(self._path, len(whole))

    def _take_all(self, head: Mapping[str, Any], first: Mapping[str, Any], *events: Any) -> None:
        """Take what the lines of a journal say.

        Raises:
            SpaceError: it records something else.
            ValueError, KeyError, TypeError, AttributeError: a line is damaged.
        """
        differing = [key for key, value in json.loads(json.dumps(head)).items() if first.get(key) != value]
        if differing:
            names = ", ".join(differing)
            raise SpaceError(f"{self._path} records another {names}: remove it or choose another file")
        for event in events:
            self._take(event)

    def _take(self, event: Mapping[str, Any]) -> None:
        if "provenance" in event:
            self.provenance = dict(event["provenance"])
        else:
            self.entries[Config.of(self._family, event["configuration"])] = formats.entry(event)


def space_of(
    journal: Journal, name: str, knobs: Sequence[Knob], problem: GemmProblem, device: DeviceSpec
) -> RecordedSpace:
    """The contents of a journal as a space.

    Raises:
        SpaceError: no config in it succeeded.
    """
    family = next(iter(journal.entries)).family if journal.entries else name
    configs = [[config[knob.name] for knob in knobs] for config in journal.entries]
    own = tuple(Knob(knob.name, knob.values, "") for knob in knobs)
    points, entries = assemble(own, configs, list(journal.entries.values()))
    return RecordedSpace(name, family, own, points, entries, problem, device, journal.provenance)


_AHEAD = 4


@dataclasses.dataclass(frozen=True, slots=True)
class RecordPlan:
    """The plan of a recording.

    Attributes:
        family: the family, with the values to cover.
        problem: the problem of its configs.
        samples: fewest samples of each config that is not slow.
        slow: a config is slow above so many times the best time; slow ones get three samples.
        max_seconds: seconds after which to stop; 0 for never.
        method: name of the way in which the bench measures.
    """

    family: ConfigSpace[Any]
    problem: GemmProblem
    samples: int = 16
    slow: float = 2.0
    max_seconds: float = 0.0
    method: str = METHOD


@dataclasses.dataclass(frozen=True, slots=True)
class Counts:
    """The progress of a recording.

    Attributes:
        done, planned: numbers of configs.
        failed: number of those done that failed.
        best_us: lowest median in microseconds; None before the first.
        idle_s: seconds the device waited for a compiler.
    """

    done: int
    planned: int
    failed: int
    best_us: float | None
    idle_s: float


class Measuring(Protocol):
    """What a recording needs of a :class:`~tuner.workers.bench.Bench`."""

    spec: DeviceSpec
    driver: str

    def trial(
        self,
        artifact: Artifact,
        problem: GemmProblem,
        incumbent_us: float | None,
        timeout_s: float,
        fewest_samples: int,
    ) -> TrialResult:
        """The result of checking an artifact and measuring it."""


class Recording:
    """Measures configs and appends them to a journal."""

    def __init__(
        self,
        plan: RecordPlan,
        bench: Measuring,
        builder: Builder,
        journal: Journal,
        configs: Sequence[Config],
    ) -> None:
        """``configs`` are the configs to record, in order; those in the journal are not measured again."""
        self._plan, self._bench, self._builder, self._journal = plan, bench, builder, journal
        self._planned = len(configs)
        self._todo = deque(config for config in configs if config not in journal.entries)
        self._running: dict[Future[Compiled], Config] = {}
        self._idle_s = 0.0
        self._failed = 0
        self._best_us: float | None = None
        for entry in journal.entries.values():
            self._count(entry)

    @property
    def complete(self) -> bool:
        """Whether every config was measured."""
        return not self._todo and not self._running

    @property
    def counts(self) -> Counts:
        """The progress."""
        done = len(self._journal.entries)
        return Counts(done, self._planned, self._failed, self._best_us, self._idle_s)

    def run(self, processes: int, on_counts: Callable[[Counts], None]) -> None:
        """Run until all configs are measured or the time is up, with ``processes`` compilers in parallel.

        Raises:
            SpaceError: sources or tools differ from those of the results in the journal.
        """
        ends = time.monotonic() + self._plan.max_seconds if self._plan.max_seconds else float("inf")
        ahead = _AHEAD * processes
        while not self.complete and time.monotonic() < ends:
            # NOTE: on the host, compilers would run on the cores being measured.
            if self._bench.spec.kind != "host" or not self._running:
                self._submit(ahead)
            for compiled, config in self._finished():
                entry = self._entry(compiled)
                self._journal.add(config, entry)
                self._count(entry)
                on_counts(self.counts)
        for future in self._running:
            future.cancel()

    def _submit(self, ahead: int) -> None:
        plan = self._plan
        while self._todo and len(self._running) < ahead:
            config = self._todo.popleft()
            future = self._builder.submit(config.family, config, plan.problem, self._bench.spec)
            self._running[future] = config

    def _finished(self) -> Iterator[tuple[Compiled, Config]]:
        host = self._bench.spec.kind == "host"
        started = time.monotonic()
        when = futures.ALL_COMPLETED if host else futures.FIRST_COMPLETED
        done, _ = futures.wait(self._running, return_when=when)
        self._idle_s += time.monotonic() - started
        # NOTE: on CUDA one at a time, so that the compilers get the next config before this one is measured.
        for future in sorted(done, key=list(self._running).index) if host else list(done)[:1]:
            yield future.result(), self._running.pop(future)

    def _entry(self, compiled: Compiled) -> Entry:
        artifact = compiled.artifact
        if artifact is None:
            return Entry((), compiled.outcome, compiled.message, compiled.seconds)
        self._journal.set_provenance(self._provenance(artifact))
        plan, bench = self._plan, self._bench
        timeout_s = trial_timeout_s(plan.problem, bench.spec)
        result = bench.trial(artifact, plan.problem, self._incumbent_us, timeout_s, plan.samples)
        if result.timing is None:
            return Entry((), result.outcome, result.message, compiled.seconds, result.check_s)
        used = artifact.resources
        smem = used.static_smem + used.dynamic_smem
        samples = result.timing.samples_us
        return Entry(samples, Outcome.OK, "", compiled.seconds, result.check_s, used.registers, smem)

    def _count(self, entry: Entry) -> None:
        self._failed += entry.outcome is not Outcome.OK
        if entry.samples_us:
            value_us = median(entry.samples_us)
            self._best_us = min(self._best_us or value_us, value_us)

    @property
    def _incumbent_us(self) -> float | None:
        """The incumbent time to give to the device, so that it stops a config at ``slow`` times the best."""
        return self._best_us and self._best_us * self._plan.slow / PRUNE_RATIO

    def _provenance(self, artifact: Artifact) -> dict[str, Any]:
        return {
            "source_digest": artifact.source_digest,
            "compiler": artifact.compiler,
            "driver": self._bench.driver,
            "device_class": self._bench.spec.device_class.id,
            "package": __version__,
            "method": self._plan.method,
        }


def planned(plan: RecordPlan, bench: Measuring) -> list[Config]:
    """Every valid config: the family's heuristic configs, then the others in random order.

    Raises:
        InvalidProblem: no config is valid.
    """
    family, problem = plan.family, plan.problem
    reason = family.why_unsupported(problem, bench.spec)
    if reason:
        raise InvalidProblem(f"{reason}; choose another family or problem")
    configs = [family.at(point) for point in valid_points(family, problem, bench.spec)]
    if not configs:
        raise InvalidProblem(
            f"no config of {family.name} is valid for {problem} with these values; give more"
        )
    random.Random(0).shuffle(configs)
    unique = dict.fromkeys(family.heuristic_configs(problem, bench.spec))
    ranks = {config: order for order, config in enumerate(unique)}
    return sorted(configs, key=lambda config: ranks.get(config, len(ranks)))


def head(plan: RecordPlan, bench: Measuring) -> dict[str, Any]:
    """The first line of the journal of this recording."""
    return {
        "family": plan.family.name,
        "knobs": {knob.name: list(knob.values) for knob in plan.family.knobs},
        "problem": plan.problem.to_dict(),
        "device": bench.spec.to_dict(),
        "samples": plan.samples,
        "slow": plan.slow,
    }
