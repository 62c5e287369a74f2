"""Digests of the machine code of every suite winner: shows that a change of the sources changed no kernel.

``python -m benchmarks.lab.machine_code`` compiles the winners of every recorded suite for the recorded
device and compares each digest with ``results/machine-code.json``; it needs NVRTC and no GPU. ``--write``
replaces the file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common.recorded_suite import load_rows
from benchmarks.common.results import RESULTS, write_json
from kernels.compiler.build import compile_spec, compiler_version
from kernels.compiler.cubin import code_sections
from kernels.registry import FAMILIES
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem

PATH = RESULTS / "machine-code.json"


def winners(path: Path) -> Iterator[tuple[str, GemmProblem, Config, DeviceSpec]]:
    """Name, problem, config and device of every row of a suite that one of our kernels won."""
    provenance = json.loads(path.with_suffix(".provenance.json").read_text())
    device = DeviceSpec.from_dict(provenance["device"])
    for row in load_rows(path):
        yield f"{row.dtype} {row.shape}", row.problem, Config.of(row.family, row.config), device


def digest(problem: GemmProblem, config: Config, device: DeviceSpec) -> str:
    """SHA-256 of the instructions that a config compiles to, whatever its symbols are called."""
    spec = FAMILIES[config.family].build_spec(config, problem, device)
    sections = code_sections(compile_spec(spec).binary).values()
    return hashlib.sha256(b"".join(sorted(sections))).hexdigest()


def main() -> int:
    """Compare, or write; returns 1 where a digest differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="replace the recorded digests")
    arguments = parser.parse_args()
    paths = [path for path in sorted(RESULTS.glob("suite-sm*.json")) if path.name.count(".") == 1]
    found = [one for path in paths for one in winners(path)]
    with ThreadPoolExecutor(2) as pool:
        digests = list(pool.map(lambda one: digest(*one[1:]), found))
    now: dict[str, Any] = {name: code for (name, *_), code in zip(found, digests, strict=True)}
    if arguments.write:
        write_json(PATH, {"compiler": compiler_version("cuda"), "winners": now})
        sys.stderr.write(f"{len(now)} digests written to {PATH.name}\n")
        return 0
    before = json.loads(PATH.read_text())["winners"]
    changed = [name for name in sorted(before | now) if before.get(name) != now.get(name)]
    for name in changed:
        was, is_now = before.get(name, "new"), now.get(name, "gone")
        sys.stdout.write(f"{name}: {was[:12]} -> {is_now[:12]}\n")
    same = len(now) - len(changed)
    sys.stderr.write(f"{same} of {len(now)} winners compile to the recorded machine code\n")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
