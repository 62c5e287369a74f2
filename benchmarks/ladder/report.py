"""The ladder of reference kernels as a plot and tables: TFLOP/s here, in the document, and of cuBLAS."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.common.pages import PAGES, PlotUnavailable, ReportError, figure, include, number, save, table
from benchmarks.ladder.bank_conflicts import conflicts_per_phase
from benchmarks.ladder.rows import Row
from kernels.reference import BASELINES, REFERENCE_KERNELS

_BAR = 0.4
_HERE, _DOCUMENT, _VENDOR = "#1f6f8b", "#c9c9c9", "#b5443c"


def plot(rows: Sequence[Row], path: Path) -> list[Path]:
    """Draw the kernels of every document; writes ``path`` as PNG and SVG and returns both paths.

    Raises:
        PlotUnavailable: matplotlib is missing.
    """
    documents = [
        (document, list(group)) for document, group in itertools.groupby(rows, key=lambda row: row.document)
    ]
    heights = [sum(row.family != "cublaslt" for row in group) + 1 for _, group in documents]
    again = f"python -m benchmarks.ladder.report {path}"
    drawn = figure(9, 0.32 * sum(heights) + 0.8 * len(documents), again)
    axes = drawn.subplots(len(documents), 1, squeeze=False, height_ratios=heights)
    for axis, (document, group) in zip(axes[:, 0], documents, strict=True):
        _draw(axis, document, group)
    axes[0, 0].legend(loc="lower right", fontsize=7)
    axes[-1, 0].set_xlabel("TFLOP/s")
    return save(drawn, path)


def _draw(axis: Any, document: str, group: Sequence[Row]) -> None:
    references = [row for row in group if row.family != "cublaslt"]
    places = range(len(references))
    axis.barh(places, [row.tflops or 0 for row in references], _BAR, color=_HERE, label="here")
    axis.barh(
        [place + _BAR for place in places],
        [row.document_tflops or 0 for row in references],
        _BAR,
        color=_DOCUMENT,
        label="document",
    )
    for place, row in zip(places, references, strict=True):
        if row.pct_cublas is not None:
            axis.text(row.tflops, place, f" {row.pct_cublas:.0f} %", va="center", fontsize=7)
    best = max((row.tflops or 0 for row in group if row.family == "cublaslt"), default=0)
    if best:
        axis.axvline(best, color=_VENDOR, linewidth=1, label="fastest cuBLAS")
    axis.set_yticks([place + _BAR / 2 for place in places], [row.kernel for row in references], fontsize=7)
    axis.tick_params(axis="x", labelsize=7)
    axis.invert_yaxis()
    axis.set_title(f"document {document}", loc="left", fontsize=9)


PAGE = PAGES / "ladder.md"
MARK = "ladder"
HEADERS = (
    "kernel", "TFLOP/s", "% cuBLAS", "document TFLOP/s", "document %", "x before", "smem B", "registers",
    "spread %", "conflicts", "note",
)  # fmt: skip


def load_rows(path: Path) -> list[Row]:
    """The rows of a ``ladder-DEVICE.json``.

    Raises:
        ReportError: it is not such a file.
    """
    try:
        return [Row(**row) for row in json.loads(path.read_text())]
    except (ValueError, TypeError) as error:
        raise ReportError(f"{path} is not a list of ladder rows: {error}") from error


def speedups(rows: Sequence[Row]) -> list[float | None]:
    """Speed-up of each kernel over the one before it in its document, at the same extents."""
    found: list[float | None] = []
    before: Row | None = None
    for row in rows:
        comparable = before and (before.document, before.m, before.n, before.k) == (
            row.document,
            row.m,
            row.n,
            row.k,
        )
        vendor = row.family == "cublaslt"
        known = before and before.tflops and row.tflops
        found.append(row.tflops / before.tflops if comparable and known and not vendor else None)  # type: ignore[operator, union-attr]
        before = before if vendor else row
    return found


def conflicts(name: str) -> str:
    """Extra passes per phase, stores from global memory / loads of fragments; - if unknown."""
    reference = next((one for one in REFERENCE_KERNELS if one.name == name), None)
    if reference is None or reference.problem.dtype.size != 2 or reference.family == "wgmma_ws":
        return "-"
    means = conflicts_per_phase(reference.config, reference.problem)
    return " / ".join(f"{(means[f'{what} a'] + means[f'{what} b']) / 2:.2g}" for what in ("store", "load"))


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The table as text, in the order of :data:`HEADERS`."""
    return [
        (
            row.kernel,
            number(row.tflops),
            number(row.pct_cublas),
            number(row.document_tflops),
            number(row.document_pct_cublas),
            number(speedup),
            "" if row.smem_bytes is None else str(row.smem_bytes),
            "" if row.registers is None else str(row.registers),
            number(row.spread_pct),
            conflicts(row.kernel) if row.family != "cublaslt" else "",
            row.note,
        )
        for row, speedup in zip(rows, speedups(rows), strict=True)
    ]


def markdown(rows: Sequence[Row], device: str) -> str:
    """One table a document."""
    parts = [f"Measured on `{device}`."]
    numbered = list(zip(rows, cells(rows), strict=True))
    for document, group in itertools.groupby(numbered, key=lambda pair: pair[0].document):
        baseline = BASELINES.get(document)
        where = f" (there on {baseline.device})" if baseline else ""
        parts += [f"### Document {document}{where}", table(HEADERS, [cell for _, cell in group])]
    return "\n\n".join(parts) + "\n"


def rich_table(rows: Sequence[Row]) -> Table:
    """The table for a terminal, without the notes."""
    shown = Table(box=None, pad_edge=False)
    for header in HEADERS[:-1]:
        shown.add_column(header, justify="left" if header == "kernel" else "right")
    for row in cells(rows):
        shown.add_row(*row[:-1])
    return shown


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """For each document the fastest kernel of its last race beside today's winner of the same problem."""
    raced: list[Row] = []
    for row in rows:
        if row.family == "cublaslt":  # with the vendor's rows those of a race begin
            raced = []
        elif not row.tflops:
            continue
        elif not row.kernel.endswith("-tuned"):
            raced.append(row)
        elif raced:
            best = max(raced, key=lambda one: one.tflops or 0.0)
            assert best.tflops
            yield (
                f"{row.document}: {best.kernel} {best.tflops:.1f}, tuned {row.tflops:.1f} TFLOP/s, "
                f"x {row.tflops / best.tflops:.3f} ({row.family})"
            )


def write_report(path: Path, rows: Sequence[Row]) -> list[Path]:
    """Write table and plot beside ``path``; the files written.

    Raises:
        PlotUnavailable: there is no matplotlib; the table is written all the same.
    """
    page = path.with_suffix(".md")
    page.write_text(markdown(rows, path.stem.removeprefix("ladder-")))
    return [page, *plot(rows, path)]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Table, plot and docs page of a measured ladder.")
    parser.add_argument("results", type=Path, help="ladder-DEVICE.json")
    path = parser.parse_args().results
    rows = load_rows(path)
    try:
        write_report(path, rows)
    except PlotUnavailable as error:
        sys.exit(f"error: {error}")
    include(PAGE, MARK, path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
