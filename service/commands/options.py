"""Options and arguments that verbs share."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.problem import DType, Layout

M = Annotated[int, typer.Argument(help="Rows of D.", min=1)]
N = Annotated[int, typer.Argument(help="Columns of D.", min=1)]
K = Annotated[int, typer.Argument(help="Length of the sum.", min=1)]
ElementType = Annotated[DType, typer.Option("--dtype", help="Element type of A and B.")]
OperandLayout = Annotated[
    Layout, typer.Option("--layout", help="How A and B are stored; nt: A is M x K, B is N x K.")
]
Device = Annotated[
    str | None, typer.Option("--device", help="cuda:0, host ...; the service's first by default.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Url = Annotated[
    str | None, typer.Option("--url", help="The service; TILEWRIGHT_URL or the local one by default.")
]
