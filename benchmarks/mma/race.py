"""One row of ``tilewright bench mma``: the fastest of our configs and of the peers, in one race.

Our candidates are the heuristic configs of family mma_sync and variations of the first of them; the peers'
are all that compute the problem. A few launches of each rule out the slow ones on both sides alike. The
fastest two of each side, ours checked as in every trial and the peers' results compared with ours, race the
kernel that only multiplies registers, interleaved and at sustained clocks, on operands rotated past the
last-level cache.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from benchmarks.mma.opponents import Candidate, Peers, probe
from kernels.mma_sync.family import MMA_SYNC
from tilewright.artifact import Artifact
from tilewright.errors import DeviceUnavailable, LaunchError
from tilewright.launch import Kernel, Launch, load
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem
from tuner.devices.base import Device, Tensors
from tuner.measure.correctness import check
from tuner.measure.encoding import decode
from tuner.measure.interleave import equal_samplers, interleave, mean_of_known
from tuner.measure.operands import bind, rotated_sets
from tuner.measure.stats import median, speed_ratio
from tuner.workers.builder import Compiled

ROUNDS = 21
_RACED = 2  # of each side
_PASSES = 2  # at the power limit
_QUICK_US, _QUICK_SAMPLES = 1500.0, 3
_VARIED = 3
_VARIATIONS: tuple[dict[str, int | str], ...] = (
    {"swizzle_size": 4}, {"stages": 4}, {"raster": "n"}, {"stages": 3}, {"min_ctas_per_sm": 2},
    {"swizzle_size": 1}, {"split_k": 4}, {"split_k": 2}, {"snake": 0}, {"stages": 5}, {"stages": 2},
)  # fmt: skip
_SAME = 0.02  # of the largest value of D: by so much results of two right kernels may differ


@dataclasses.dataclass(frozen=True, slots=True)
class Ours:
    """A config that is being compiled."""

    config: Config
    compiled: Future[Compiled]


def configs(problem: GemmProblem, device: DeviceSpec, most: int) -> list[Config]:
    """The heuristic configs, then the first of them with one knob changed, ``most`` at most."""
    first = MMA_SYNC.heuristic_configs(problem, device)
    pairs = itertools.product(_VARIATIONS, first[:_VARIED])
    varied = (Config.of(pick.family, dict(pick.knobs) | change) for change, pick in pairs)
    valid = (one for one in varied if MMA_SYNC.why_invalid(one, problem, device) is None)
    return list(dict.fromkeys([*first, *valid]))[:most]


def race(
    device: Device,
    problem: GemmProblem,
    ours: Sequence[Ours],
    peers: Peers | None,
    rounds: int,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """The row of one problem.

    Raises:
        DeviceUnavailable: none of our kernels is right.
        LaunchError: a kernel broke the device.
    """
    sets = rotated_sets(device, problem)
    with contextlib.ExitStack() as stack:
        named = dict(_built(ours, tell))
        kernels = {str(config): load(artifact) for config, artifact in named.items()}
        for kernel in kernels.values():
            stack.callback(kernel.close)
        mine = _right(device, problem, kernels, sets, tell)
        others = _peers(device, problem, sets, peers, mine[0], tell) if peers else []
        entries = [*mine, *others, probe(device, problem)]
        samplers = [equal_samplers(device, [one.launches])[0] for one in entries]
        taken = interleave(device, samplers, rounds, 0, passes=_PASSES)
        rows = taken.rows
        configs_by_name = {str(config): config for config in named}
        best = min(range(len(mine)), key=lambda i: median(rows[i]))
        row = _row(problem, configs_by_name[mine[best].name], rows[best], _rate(entries[-1], rows[-1]))
        row |= _against(others, rows[len(mine) : len(mine) + len(others)], rows[best], taken.periods)
        return row | {"sm_mhz": mean_of_known([mhz for mhz, _ in taken.states])}


def _built(ours: Sequence[Ours], tell: Callable[[str], None]) -> Iterator[tuple[Config, Artifact]]:
    for one in ours:
        compiled = one.compiled.result()
        if compiled.artifact:
            yield one.config, compiled.artifact
        else:
            tell(f"  left out: {one.config}: {compiled.message.splitlines()[0]}")


def _right(
    device: Device,
    problem: GemmProblem,
    kernels: dict[str, Kernel],
    sets: Sequence[Tensors],
    tell: Callable[[str], None],
) -> list[Candidate]:
    """The fastest two of our kernels that pass the check."""
    bound = {name: bind(device, kernel, problem, sets) for name, kernel in kernels.items()}
    entries = [Candidate(name, one.launches, problem.flops, one) for name, one in bound.items()]
    right: list[Candidate] = []
    for us, entry in _by_time(device, entries):
        if len(right) == _RACED:
            break
        reason = check(device, kernels[entry.name], problem)
        tell(f"  {us:9.2f} us {'WRONG: ' + reason if reason else 'ours'} {entry.name}")
        if not reason:
            right.append(entry)
    if not right:
        raise DeviceUnavailable(f"no kernel of mma_sync is right for {problem}; run the GPU tests")
    return right


def _peers(
    device: Device,
    problem: GemmProblem,
    sets: Sequence[Tensors],
    peers: Peers,
    ours: Candidate,
    tell: Callable[[str], None],
) -> list[Candidate]:
    """The fastest two of the peers whose result is ours within rounding."""
    expected = _result(device, problem, sets[0], ours.launches[0])
    allowed = _SAME * float(abs(expected).max())
    same: list[Candidate] = []
    for us, entry in _by_time(device, list(peers.candidates(device, problem, sets))):
        if len(same) == _RACED:
            break
        off = float(abs(_result(device, problem, sets[0], entry.launches[0]) - expected).max())
        tell(f"  {us:9.2f} us {entry.name}{'' if off <= allowed else f' WRONG: off by {off:.3g}'}")
        if off <= allowed:
            same.append(entry)
    return same


def _result(device: Device, problem: GemmProblem, tensors: Tensors, launch: Launch) -> Any:
    tensors.d[:] = 0
    device.synchronize()
    device.once(launch)
    return decode(tensors.d, problem.out).astype("float32")


def _by_time(device: Device, entries: Sequence[Candidate]) -> list[tuple[float, Candidate]]:
    """The candidates by the microseconds of a few launches; those that the device refuses are left out."""
    found = []
    for entry in entries:
        try:
            probe_us = device.timer(entry.launches[:1])
            probe_us()
            count = max(1, round(_QUICK_US / max(probe_us(), 0.1)))
            sample = device.timer(entry.launches[:count])
            found.append((median([sample() for _ in range(_QUICK_SAMPLES)]), entry))
        except LaunchError as error:
            if error.sticky:
                raise
    return sorted(found, key=lambda pair: pair[0])


def _rate(entry: Candidate, samples: Sequence[float]) -> float:
    return entry.flops / median(samples) / 1e6


def _row(problem: GemmProblem, config: Config, samples: Sequence[float], limit: float) -> dict[str, Any]:
    us = median(samples)
    return {
        "m": problem.m, "n": problem.n, "k": problem.k, "layout": str(problem.layout),
        "dtype": str(problem.dtype), "accumulate": str(problem.accumulate), "ours_us": round(us, 3),
        "tflops": round(problem.flops / us / 1e6, 1), "limit_tflops": round(limit, 1),
        "share_of_limit": round(problem.flops / us / 1e6 / limit, 4), "config": dict(config.knobs),
    }  # fmt: skip


def _against(
    others: Sequence[Candidate], rows: Sequence[Sequence[float]], ours: Sequence[float], periods: bool
) -> dict[str, Any]:
    """The fastest peer, and how much longer it takes; none if no peer computes the problem."""
    if not others:
        return dict.fromkeys(("cutlass_us", "cutlass", "ratio_cutlass", "ci_low", "ci_high"))
    best = min(range(len(others)), key=lambda i: median(rows[i]))
    ratio = speed_ratio(rows[best], ours, periods)
    return {
        "cutlass_us": round(median(rows[best]), 3), "cutlass": others[best].name,
        "ratio_cutlass": round(ratio.value, 4), "ci_low": round(ratio.low, 4),
        "ci_high": round(ratio.high, 4),
    }  # fmt: skip
