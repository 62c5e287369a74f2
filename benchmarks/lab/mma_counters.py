"""Hardware counters of mma_sync's kernels, those of an earlier release beside today's.

    git archive COMMIT kernels client/tilewright tuner | tar x -C OLD
    PYTHONPATH=OLD:OLD/client:. python -P -m benchmarks.lab.mma_counters write KERNELS/old --rows MMA.json
    python -m benchmarks.lab.mma_counters write KERNELS/today --rows MMA.json
    python -m benchmarks.lab.mma_counters measure KERNELS

``write`` compiles the configs of some rows of ``tilewright bench mma``; it needs no GPU. A release takes
those knobs of a config that it has. ``measure`` runs ncu over the folders, prints a table and stores its rows
in ``results/counters-mma-<device class>.json``; the clocks stay as they are.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.results import RESULTS, now, write_json
from benchmarks.lab import launched
from kernels.base.spec import CompileError
from kernels.compiler.build import build
from kernels.mma_sync.family import MMA_SYNC
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem
from tuner.workers.device_worker import open_device

# What kernels are compiled for: an H100 or an H200, which differ in their memory alone.
DEVICE = DeviceSpec("cuda", "sm_90", "H100", 132, 80 << 30, 50 << 20, 227 << 10, 228 << 10)
PROBLEMS = (
    "4096x4096x4096-nt-float16-float32", "4096x4096x4096-nn-float16-float32",
    "4096x4096x4096-tn-tfloat32-float32", "4096x4096x4096-nt-float16-float16",
    "5376x5376x2048-tt-bfloat16-float32", "4096x4096x4096-nt-int8-int32",
    "64x4096x14336-nt-float16-float32",
)  # fmt: skip
_SECTIONS = (
    "SpeedOfLight", "ComputeWorkloadAnalysis", "SchedulerStats", "InstructionStats",
    "MemoryWorkloadAnalysis_Tables",
)  # fmt: skip
_PCT = r"\.avg\.pct_of_peak_sustained_active"
_CONFLICTS = r"l1tex__data_bank_conflicts_pipe_lsu_mem_shared"
# A column is the first of its counters that ncu reports. Of several that match, per cent are the highest, all
# others the total.
_COLUMNS = {
    "ns": (r"gpu__time_duration\.sum",),
    "tensor_pipe_pct": (rf"sm__pipe_tensor\w*_active{_PCT}", rf"sm__inst_executed_pipe_tensor\w*{_PCT}"),
    "issue_slots_pct": (rf"sm__inst_issued{_PCT}", rf"smsp__issue_active{_PCT}"),
    "instructions": (r"smsp__inst_executed\.sum",),
    "bank_conflicts": (rf"{_CONFLICTS}\.sum", rf"{_CONFLICTS}_op_\w+\.sum"),
}


def name_of(row: dict[str, Any]) -> str:
    """The problem of a row of ``tilewright bench mma`` as a name."""
    return "{m}x{n}x{k}-{layout}-{dtype}-{accumulate}".format(**row)


def write(folder: Path, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> Iterator[str]:
    """Compile the configs of the named rows into a folder; a line for each."""
    found = {name_of(row): row for row in rows}
    known = {knob.name for knob in MMA_SYNC.knobs}
    for name in names:
        if name not in found:
            yield f"{name}: no row; measure it with tilewright bench mma"
            continue
        row = found[name]
        knobs = {knob: value for knob, value in row["config"].items() if knob in known}
        config = MMA_SYNC.completed(Config.of("mma_sync", knobs))
        kept = {key: row[key] for key in ("m", "n", "k", "layout", "dtype")}
        problem = GemmProblem(**kept, acc_dtype=row["accumulate"])
        reason = MMA_SYNC.why_invalid(config, problem, DEVICE)
        try:
            if reason is None:
                launched.write(folder, name, build(MMA_SYNC, config, problem, DEVICE), problem)
        except CompileError as error:
            reason = str(error).splitlines()[0]
        yield f"{name}: {reason or 'written'}"


def measure(folder: Path, device: str) -> Iterator[dict[str, Any]]:
    """The rows of the kernels of a folder.

    Raises:
        RuntimeError: ncu reports another number of kernels.
    """
    sections = [word for section in _SECTIONS for word in ("--section", section)]
    options = ["--clock-control", "none", "--kernel-name", "regex:^mma_sync$", "--page", "raw", "--csv"]
    command = ["ncu", *options, "--print-units", "base", *sections, *launched.command(folder, device)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    found, names = counters(ended.stdout), launched.names(folder)
    if len(found) != len(names):
        said = (ended.stdout + ended.stderr)[-2000:]
        raise RuntimeError(f"ncu reports {len(found)} of {len(names)} kernels; it said:\n{said}")
    for name, values in zip(names, found, strict=True):
        artifact, _ = launched.read(folder, name)
        source = artifact.source_digest[:12]
        yield {
            "problem": name,
            "release": folder.name,
            "source": source,
            **columns(values),
        }


def counters(output: str) -> list[dict[str, float]]:
    """The counters of every kernel in what ncu printed: lines of its own, names, units, rows."""
    _, mark, table = output.partition('"ID",')
    rows = [row for row in csv.DictReader(io.StringIO(mark + table)) if row["ID"].isdigit()]
    numbers = ({name: _number(text) for name, text in row.items()} for row in rows)
    return [{name: value for name, value in row.items() if value is not None} for row in numbers]


def _number(text: str | None) -> float | None:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


def columns(values: dict[str, float]) -> dict[str, float | None]:
    """The columns of the table; None where ncu reports none of a column's counters."""
    found: dict[str, float | None] = {}
    for column, patterns in _COLUMNS.items():
        matches = ([values[name] for name in values if re.fullmatch(one, name)] for one in patterns)
        chosen = next((some for some in matches if some), [])
        total = max(chosen, default=0.0) if column.endswith("_pct") else sum(chosen)
        found[column] = round(total, 2) if chosen else None
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a table, a problem's releases one after the other."""
    names = ("problem", "release", *_COLUMNS)
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for row in sorted(rows, key=lambda row: row["problem"]):
        lines.append("| " + " | ".join(str(row[name]) for name in names) + " |")
    return "\n".join(lines)


def main() -> None:
    """Compile kernels, or measure those that are compiled."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    writing = verbs.add_parser("write", help="compile kernels")
    writing.add_argument("folder", type=Path)
    writing.add_argument("--rows", type=Path, required=True, help="a file of tilewright bench mma")
    writing.add_argument("--only", action="append", metavar="MxNxK-LAYOUT-TYPE-ACCUMULATE")
    measuring = verbs.add_parser("measure", help="measure all folders of kernels in a folder")
    measuring.add_argument("folder", type=Path)
    measuring.add_argument("--device", default="cuda:0")
    measuring.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.verb == "write":
        for line in write(given.folder, json.loads(given.rows.read_text()), given.only or PROBLEMS):
            sys.stdout.write(line + "\n")
        return
    device = open_device(given.device)
    facts = {"device": device.spec.name, "driver": device.driver, "date": now()}
    folders = sorted(path for path in given.folder.iterdir() if path.is_dir())
    rows = [row | facts for folder in folders for row in measure(folder, given.device)]
    write_json(given.out / f"counters-mma-{device.spec.device_class.id}.json", rows)
    sys.stdout.write(table(rows) + "\n")


if __name__ == "__main__":
    main()
