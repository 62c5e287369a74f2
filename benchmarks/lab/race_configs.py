"""Race configs of one problem against each other and the vendor library.

python -m benchmarks.lab.race_configs SHAPE --dtype TYPE --base CONFIG --vary KNOB=A,B --config CONFIG
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common.recorded_suite import load_rows
from benchmarks.common.results import RESULTS, device_facts, now, write_json
from benchmarks.common.shapes import Shape
from kernels.base.spec import CompileError
from kernels.compiler.build import build
from kernels.registry import FAMILIES
from tilewright.artifact import Artifact
from tilewright.errors import InvalidProblem, LaunchError, TilewrightError
from tilewright.launch import Kernel, load
from tilewright.launch.cta_order import CTA_ORDERS
from tilewright.schema.codec import KnobValue, encode
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem, Layout
from tuner.devices.base import Device
from tuner.measure.correctness import check
from tuner.measure.race import RaceRules, RaceSamples, race
from tuner.measure.stats import CONFIDENCE, median, rounds_needed
from tuner.workers.device_worker import open_device

_CONFIG = re.compile(r"(\w+)\((.*)\)")
_SHAPE = re.compile(r"(\d+)x(\d+)x(\d+)(?:-(nn|nt|tn|tt))?")


def problem_of(shape: str, dtype: str) -> GemmProblem:
    """``MxNxK`` or ``MxNxK-layout``, as the suite has it: without a layout weights are stored N x K.

    Raises:
        InvalidProblem: it is neither, or there is no such problem.
    """
    found = _SHAPE.fullmatch(shape)
    if not found:
        raise InvalidProblem(f"a shape is MxNxK or MxNxK-layout, such as 4096x4096x4096-nn, got {shape!r}")
    m, n, k, layout = found.groups()
    problem = Shape("given", int(m), int(n), int(k), Layout(layout or "nt")).problem(DType(dtype))
    if problem is None:
        raise InvalidProblem(f"there is no {shape} in {dtype}: 8-bit operands lie along k, layout nt")
    return problem


def config_of(text: str) -> Config:
    """The inverse of ``str(config)``.

    Raises:
        InvalidProblem: no family is called so, or a knob has no such value.
    """
    found = _CONFIG.fullmatch(text.strip())
    if not found or found[1] not in FAMILIES:
        raise InvalidProblem(f"a config is family(knob=value, ..) with a family of {', '.join(FAMILIES)}")
    pairs = (item.partition("=") for item in re.split(r",\s*", found[2]) if item)
    return Config.of(found[1], {name: _value(found[1], name, value) for name, _, value in pairs})


def varied(base: Config, changes: Sequence[str]) -> list[Config]:
    """``base`` with every combination of ``knob=value,..``, each knob once.

    Raises:
        InvalidProblem: the family has no such knob, or the knob no such value.
    """
    axes: list[list[tuple[str, KnobValue]]] = []
    for change in changes:
        name, _, values = change.partition("=")
        if name in {axis[0][0] for axis in axes}:
            raise InvalidProblem(f"{name} is varied twice; give all of its values at once")
        axes.append([(name, _value(base.family, name, value)) for value in values.split(",")])
    chosen = itertools.product(*axes)
    return [Config.of(base.family, dict(base.knobs) | dict(changed)) for changed in chosen]


def winner(problem: GemmProblem, spec: DeviceSpec, folder: Path = RESULTS) -> Config:
    """The config of the suite's row for a problem, by the knobs of today.

    Raises:
        InvalidProblem: there is no such row.
    """
    path = folder / f"suite-{spec.device_class.id}-{problem.dtype.value}.json"
    for row in load_rows(path) if path.exists() else ():
        if row.problem == problem:
            return Config.of(row.family, row.config)
    raise InvalidProblem(f"{path.name} has no row for {problem}; give the config itself")


def _value(family: str, name: str, text: str) -> KnobValue:
    knobs = {knob.name: knob for knob in FAMILIES[family].knobs}
    if name not in knobs:
        raise InvalidProblem(f"{family} has no knob {name!r}; it has {', '.join(knobs)}")
    legal = knobs[name].legal_by_text
    if text not in legal:
        raise InvalidProblem(f"{name} must be one of {', '.join(legal)}, got {text!r}")
    return legal[text]


ROUNDS, PASSES = 61, 2
SUITE = "suite"

COMMAND = ("python", "-m", "benchmarks.lab.race_configs")


@dataclasses.dataclass(frozen=True, slots=True)
class FinalResult:
    """The final figures of a candidate.

    Attributes:
        name: the config, or the vendor library.
        median_us: of its samples.
        ratio, low, high: the vendor's time over its own, the median over the rounds with its interval; 1 for
            the vendor itself.
    """

    name: str
    median_us: float
    ratio: float
    low: float
    high: float


def built(configs: Sequence[Config], problem: GemmProblem, spec: DeviceSpec) -> Iterator[Artifact | str]:
    """For each config its artifact, or why there is none."""

    def one(config: Config) -> Artifact | str:
        family = FAMILIES[config.family]
        reason = family.why_invalid(config, problem, spec)
        if reason:
            return reason
        try:
            artifact = build(family, config, problem, spec)
        except CompileError as error:
            return str(error)
        spilled = artifact.resources.spill_bytes
        return f"{spilled} bytes of registers spilled" if spilled else artifact

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(one, configs)


def run(
    device: Device,
    problem: GemmProblem,
    configs: Sequence[Config],
    rounds: int,
    seed: int,
    passes: int = PASSES,
) -> tuple[list[Config], RaceSamples, dict[str, str]]:
    """Race the configs that build, do not spill and give the right result. Returns the configs that took
    part, their samples, and why the others did not.

    Raises:
        InvalidProblem: none could.
        LaunchError: a kernel broke the device.
    """
    kernels: dict[Config, Kernel] = {}
    absent: dict[str, str] = {}
    try:
        for config, artifact in zip(configs, built(configs, problem, device.spec), strict=True):
            reason = (
                artifact if isinstance(artifact, str) else _enter(device, problem, config, artifact, kernels)
            )
            if reason:
                absent[str(config)] = reason
        if not kernels:
            raise InvalidProblem(f"no config can run: {absent}")
        samples = race(device, list(kernels.values()), problem, RaceRules(rounds, seed, passes))
    finally:
        for kernel in kernels.values():
            kernel.close()
    return list(kernels), samples, absent


def race_results(names: Sequence[str], samples: RaceSamples) -> list[FinalResult]:
    """All candidates, the fastest first; the vendor's row is the last of the samples."""
    found = []
    for place, (name, row) in enumerate(zip([*names, samples.vendor_name], samples.samples_us, strict=True)):
        ratio = samples.ratio(-1, place)
        found.append(FinalResult(name, median(row), ratio.value, ratio.low, ratio.high))
    return sorted(found, key=lambda one: one.median_us)


def report(configs: Sequence[Config], samples: RaceSamples, absent: dict[str, str]) -> Iterator[str]:
    """Lines of text: each candidate by the knobs in which configs differ."""
    told = list(_differing(configs))
    names = [_short(config, told) for config in configs]
    for one in race_results(names, samples):
        yield f"{one.median_us:10.2f} us  x {one.ratio:.3f} [{one.low:.3f}, {one.high:.3f}]  {one.name}"
    clock = "clock unknown" if samples.mhz is None else f"{samples.mhz:.0f} MHz"
    power = "" if samples.watts is None else f", {samples.watts:.0f} W"
    yield f"{len(samples.samples_us[0])} rounds, {clock}{power}; {samples.vendor_detail}"
    for name, reason in absent.items():
        yield f"no part: {name}: {reason}"


def _enter(
    device: Device, problem: GemmProblem, config: Config, artifact: Artifact, kernels: dict[Config, Kernel]
) -> str | None:
    kernel = load(artifact)
    try:
        wrong = check(device, kernel, problem)
    except LaunchError as error:
        if error.sticky:
            raise
        wrong = str(error)
    if wrong:
        kernel.close()
        return wrong
    kernels[config] = kernel
    return None


def _differing(configs: Sequence[Config]) -> Iterator[str]:
    for name in dict.fromkeys(itertools.chain(*configs)):
        if len({dict(config.knobs).get(name) for config in configs}) > 1:
            yield name


def _short(config: Config, told: Sequence[str]) -> str:
    own = dict(config.knobs)
    return " ".join([config.family, *(f"{name}={own[name]}" for name in told if name in own)])


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "benchmarks.lab.race_configs", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("shape", help="MxNxK or MxNxK-layout")
    parser.add_argument("--dtype", default="float16", choices=[one.value for one in DType])
    parser.add_argument("--base", help="a config, or 'suite' for the winner in the suite's results")
    parser.add_argument("--vary", action="append", default=[], help="knob=value,..")
    parser.add_argument("--config", action="append", default=[], help="a config as tilewright prints it")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of short samples")
    parser.add_argument("--passes", type=int, default=PASSES, help="at the power limit: a second each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path)
    return parser


def _why_refused(given: argparse.Namespace) -> str | None:
    """The reason to refuse options that would lose a finished race, or be ignored silently."""
    if given.vary and not given.base:
        return "--vary changes a config: give it with --base"
    if given.rounds < rounds_needed(CONFIDENCE):
        return f"--rounds must be at least {rounds_needed(CONFIDENCE)}, for an interval"
    if given.passes < 1:
        return "--passes must be at least 1"
    if given.out and not given.out.parent.is_dir():
        return f"--out: there is no folder {given.out.parent}"
    return None


def _asked(given: argparse.Namespace, problem: GemmProblem, spec: DeviceSpec) -> list[Config]:
    configs = [config_of(text) for text in given.config]
    if given.base:
        base = winner(problem, spec) if given.base == SUITE else config_of(given.base)
        configs += varied(base, given.vary)
    return list(dict.fromkeys(configs))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print and write."""
    parser = _arguments()
    given = parser.parse_args(arguments)
    refused = _why_refused(given)
    if refused:
        parser.error(refused)
    try:
        problem, device = problem_of(given.shape, given.dtype), open_device(given.device)
        configs = _asked(given, problem, device.spec)
        ran, samples, absent = run(device, problem, configs, given.rounds, given.seed, given.passes)
    except TilewrightError as error:
        parser.error(str(error))
    sys.stdout.writelines(line + "\n" for line in report(ran, samples, absent))
    if CTA_ORDERS.refused:
        sys.stdout.write(f"{CTA_ORDERS.refused} times a kernel with cta_order=gpc got no order\n")
    if given.out:
        facts: dict[str, Any] = {
            "date": now(), **device_facts(device.spec, device.driver), "problem": problem.to_dict(),
            "command": shlex.join([*COMMAND, *(arguments or sys.argv[1:])]),
        }  # fmt: skip
        rows = [dataclasses.asdict(one) for one in race_results([str(config) for config in ran], samples)]
        write_json(given.out, {**facts, "results": rows, "absent": absent, "race": encode(samples)})


if __name__ == "__main__":
    main()
