"""Options and arguments that verbs share."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from shutil import get_terminal_size
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from pydantic_core import to_json
from rich.cells import cell_len

from service.settings import Settings
from tilewright import Client, wire
from tilewright.errors import DeviceUnavailable, printable
from tilewright.schema.problem import DType, GemmProblem, Layout

M = Annotated[int, typer.Argument(help="Rows of D.", metavar="M", min=1)]
N = Annotated[int, typer.Argument(help="Columns of D.", metavar="N", min=1)]
K = Annotated[int, typer.Argument(help="Length of the sum.", metavar="K", min=1)]
ElementType = Annotated[
    DType | None,
    typer.Option("--dtype", help="Element type of A and B; float16 on a GPU, float32 on a CPU by default."),
]
OperandLayout = Annotated[
    Layout | None,
    typer.Option(
        "--layout",
        help="How A and B are stored: B is N x K in nt, the default on a GPU, K x N in nn, that on a CPU.",
    ),
]
PROBLEM_ARGUMENTS = ("m", "n", "k", "dtype", "layout")  # have options of their own
Device = Annotated[
    str | None, typer.Option("--device", help="cuda:0, host ...; the service's first by default.")
]
MOST_LISTED = 1000
Limit = Annotated[int, typer.Option(help="How many at most.", min=1, max=MOST_LISTED)]
NewestFirst = Annotated[
    int, typer.Option("--limit", help="How many, the newest first.", min=1, max=MOST_LISTED)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Url = Annotated[
    str | None, typer.Option("--url", help="The service; TILEWRIGHT_URL or the local one by default.")
]
DatabaseUrl = Annotated[
    str | None, typer.Option(help="TILEWRIGHT_DATABASE_URL or the user's own by default.")
]
Plain = BaseModel | Sequence[BaseModel] | dict[str, Any] | list[dict[str, Any]]
_INDENT = "    "
_ON_ONE_LINE = str.maketrans("\n\t", "  ")  # what printable leaves of what would break a column
_NOT_ASCII = re.compile(r"[^ -~\n]")
_DEFAULTS = {"cuda": (DType.FLOAT16, Layout.NT), "host": (DType.FLOAT32, Layout.NN)}


def connect(url: str | None) -> Client:
    """A client of the service at ``url``, or where the settings say it is."""
    settings = Settings()
    key = settings.key.get_secret_value() if settings.key else None
    return Client(url or settings.service_url, timeout=60.0, key=key)


def device_named(client: Client, name: str | None) -> wire.DeviceView:
    """The service's device of this name, its first one where none is named or there is no such.

    Raises:
        DeviceUnavailable: it has none yet.
    """
    found = client.devices()
    if not found:
        raise DeviceUnavailable(f"{client.url} has no device yet; wait until 'tilewright devices' lists one")
    return next((device for device in found if device.name == name), found[0])


def problem_of(
    extents: Sequence[int], dtype: DType | None, layout: Layout | None, device_kind: str, **more: Any
) -> GemmProblem:
    """The problem of these M, N and K; types that were not given are those that a CPU or a GPU computes."""
    default_dtype, default_layout = _DEFAULTS[device_kind]
    m, n, k = extents
    return GemmProblem(m, n, k, dtype or default_dtype, layout or default_layout, **more)


WHOLE_ID = 32  # characters of the id of a job or an import


def only_one(start: str, found: Sequence[str], what: str, listing: str) -> str:
    """The one id that begins with ``start``, of the first few that do.

    Raises:
        typer.BadParameter: there is none, or more than one, or ``start`` is empty: any would begin so.
    """
    if not start:
        raise typer.BadParameter(f"an empty id names no {what}; {listing!r} lists them")
    if len(found) != 1:
        text = f"no {what} starts" if not found else f"more than one {what} starts"
        raise typer.BadParameter(f"{text} with {start!r}; {listing!r} lists them")
    return found[0]


def echo(text: object, err: bool = False) -> None:
    """A line on stdout or stderr."""
    typer.echo(printable(text), err=err)


def print_json(data: Plain) -> None:
    """JSON on stdout, with characters that control a terminal escaped."""
    typer.echo(_NOT_ASCII.sub(_in_json, to_json(data, indent=2).decode()))


def _in_json(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]


def print_result(data: Plain, as_json: bool, text: str) -> None:
    """A result on stdout, as JSON or in words."""
    if as_json:
        print_json(data)
    else:
        echo(text)


def print_list(data: Plain, as_json: bool, headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Results on stdout, as JSON or as a table."""
    if as_json:
        print_json(data)
    else:
        print_table(headers, rows)


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on stdout; on a terminal that is too narrow for it, the last columns go below each row.

    No cell is cut or folded, so that ids can be copied.
    """
    table = [headers, *([printable(value).translate(_ON_ONE_LINE) for value in row] for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    is_terminal = sys.stdout is not None and sys.stdout.isatty()  # None if it is closed
    lines = _columns_of_lines(widths, get_terminal_size().columns if is_terminal else sys.maxsize)
    for row in table:
        for number, columns in enumerate(lines):
            cells = (row[one] + " " * (widths[one] - cell_len(row[one])) for one in columns)
            line = "  ".join(cells).rstrip()
            if line or number == 0:
                typer.echo(f"{_INDENT * (number > 0)}{line}")


def need_known(client: Client, device_class: str | None, family: str | None = None) -> None:
    """Refuse a device class or a kernel family that the service has nothing of.

    Raises:
        typer.BadParameter: it has none such; the message says which there are.
    """
    if family and family not in (families := [one.name for one in client.families()]):
        text = f"there is no family {family}; there are {', '.join(families)}"
        raise typer.BadParameter(text, param_hint="--family")
    if device_class and not client.config_list(device_class=device_class, limit=1).items:
        classes = {one.device_class for one in client.devices()}
        classes |= {one.device_class for one in client.config_sets(limit=MOST_LISTED).items}
        # NOTE: an import that is not trusted brings trials of a class without a winner, which no list has.
        if device_class not in classes and not client.export(os.devnull, device_class=device_class):
            known = ", ".join(sorted(classes)) or "none yet"
            text = f"there is no device class {device_class}; there are {known}"
            raise typer.BadParameter(text, param_hint="--device-class")


def tell_unknown(client: Client, device_class: str | None) -> None:
    """Say on stderr which device classes there are, if what was given is none of them."""
    try:
        need_known(client, device_class)
    except typer.BadParameter as error:
        echo(error.message, err=True)


def tell_end(limit: int, full: object) -> None:
    """Say on stderr, below a list, that it ends at its limit, if it is full."""
    if full and limit < MOST_LISTED:
        echo(f"the list ends at its limit of {limit}: --limit shows up to {MOST_LISTED}", err=True)
    elif full:
        echo(f"the list ends after {limit}, the most that is listed", err=True)


def _columns_of_lines(widths: Sequence[int], room: int) -> list[list[int]]:
    """The columns of each line of a row: as many as have room, at least one."""
    lines, used = [[0]], widths[0]
    for column, width in enumerate(widths[1:], 1):
        used += 2 + width
        if used > room:
            lines.append([])
            used = len(_INDENT) + width
        lines[-1].append(column)
    return lines


def to_run(best: wire.BestConfigView) -> str:
    """What to run: ``kernel``, or the vendor library by its name, which may be so in a tie."""
    return best.baseline.name if best.use_vendor else "kernel"


def rate(tflops: float) -> str:
    """A throughput in TFLOP/s, or in GFLOP/s where that is less than one."""
    return f"{tflops:.1f} TFLOP/s" if tflops >= 1 else f"{1e3 * tflops:.1f} GFLOP/s"


def print_best(best: wire.BestConfigView) -> None:
    """A winner against the vendor library, in words."""
    speedup, timing = best.speedup, best.timing
    verdict = {
        "kernel": "the kernel wins",
        "vendor": "the vendor library wins",
        "tie": "no difference",
        "disturbed": f"the race settles nothing, as {timing.disturbed}; tune again on a quiet device",
    }
    echo(f"problem    {best.problem} on {best.device_class} ({best.match.kind} match)")
    echo(f"winner     {best.config}")
    echo(
        f"time       {timing.median_us:.2f} us [{timing.low_us:.2f}, {timing.high_us:.2f}], "
        f"{rate(best.tflops)}"
    )
    echo(f"baseline   {best.baseline.name}: {best.baseline.median_us:.2f} us in the same race")
    echo(
        f"speed-up   {speedup.value:.3f} [{speedup.low:.3f}, {speedup.high:.3f}] at "
        f"{speedup.confidence:.0%} confidence: {verdict[best.verdict]}"
    )
    echo(f"run        {to_run(best)}")
    echo(f"artifact   {best.artifact.digest}")
