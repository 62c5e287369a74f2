"""``tilewright best``."""

from __future__ import annotations

from typing import Annotated

import typer

from service.commands.options import AsJson, ElementType, OperandLayout, Url
from service.commands.output import connect, print_best, print_json, print_table, to_run
from tilewright import wire
from tilewright.problem import DType, GemmProblem, Layout
from tilewright.requests import BestOptions

Extents = Annotated[list[int] | None, typer.Argument(help="M N K of one problem; nothing for the list.")]
Arch = Annotated[
    str | None,
    typer.Option(help="sm_90 and the like; the class of the service's first device by default."),
]
Nearest = Annotated[
    bool, typer.Option("--nearest", help="Take the nearest tuned problem where this one is not.")
]


def best(
    extents: Extents = None,
    dtype: ElementType = DType.FLOAT16,
    layout: OperandLayout = Layout.NT,
    arch: Arch = None,
    nearest: Nearest = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the stored winner of a problem, or all winners."""
    if extents and len(extents) != 3:
        raise typer.BadParameter("give M, N and K, or nothing for the list")
    with connect(url) as client:
        options: BestOptions = {"arch": arch} if arch else {"device_class": client.devices()[0].device_class}
        if not extents:
            _show_list(client.configs(**options), as_json)
            return
        m, n, k = extents
        options["policy"] = (wire.Policy.NEAREST if nearest else wire.Policy.EXACT).value
        found = client.best_config(GemmProblem(m, n, k, dtype, layout), **options)
    if as_json:
        print_json(found)
    else:
        print_best(found)


def _show_list(found: list[wire.BestConfigView], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    headers = ("problem", "device class", "us", "TFLOP/s", "speed-up", "verdict", "run", "config")
    print_table(
        headers,
        (
            (
                item.problem.to_problem(),
                item.device_class,
                f"{item.timing.median_us:.2f}",
                f"{item.tflops:.3f}",
                f"{item.speedup.value:.3f} [{item.speedup.low:.3f}, {item.speedup.high:.3f}]",
                item.verdict,
                to_run(item),
                item.config.to_config(),
            )
            for item in found
        ),
    )
