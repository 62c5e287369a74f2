"""Shapes of benchmarks: those of the suite, and those held out from it.

Weights are stored N x K (layout nt) unless another layout is given. Figures are averaged over a group. Tune
the search on :data:`SUITE`, judge it by :data:`HELD_OUT`: the two share no shape.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tilewright.errors import InvalidProblem, TilewrightError
from tilewright.schema.problem import DType, GemmProblem, Layout

SEED_GROUP = "seed 003"


class ShapesError(TilewrightError):
    """A selection matches no shape; the message says which there are."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """One problem in one of several element types.

    Attributes:
        group: what it is an example of.
        m, n, k: extents.
        layout: how A and B are stored.
        accumulate: type of the running sum; None for the default of the element type.
        source: the model and its projection; empty for made-up extents.
        held_out: whether nothing may be decided by its result.
    """

    group: str
    m: int
    n: int
    k: int
    layout: Layout = Layout.NT
    accumulate: DType | None = None
    source: str = ""
    held_out: bool = False

    @property
    def extents(self) -> str:
        """``MxNxK``."""
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def name(self) -> str:
        """Extents, layout and, where it is not the default one, the type of the sum."""
        return "-".join(filter(None, (self.extents, self.layout, self.accumulate)))

    def problem(self, dtype: DType) -> GemmProblem | None:
        """The problem in an element type; None if this type does not support it.

        8-bit floats give bfloat16, which is what follows them in a network; the vendor library takes
        8-bit operands in layout nt only.
        """
        out = DType.BFLOAT16 if dtype in (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2) else None
        if dtype.size == 1 and self.layout is not Layout.NT:
            return None
        try:
            return GemmProblem(
                self.m, self.n, self.k, dtype, self.layout, out_dtype=out, acc_dtype=self.accumulate
            )
        except InvalidProblem:
            if self.accumulate is None:
                raise
            return None


def _group(name: str, *extents: tuple[int, int, int]) -> tuple[Shape, ...]:
    return tuple(Shape(name, *one) for one in extents)


def _decode(rows: Sequence[int], *weights: tuple[int, int]) -> tuple[Shape, ...]:
    return tuple(Shape("decode", m, n, k) for n, k in weights for m in rows)


SUITE: tuple[Shape, ...] = (
    *_group("squares", *((s, s, s) for s in (512, 1024, 2048, 4096, 6144, 8192, 12288))),
    Shape("squares", 4096, 4096, 4096, Layout.NN),
    Shape("squares", 8192, 8192, 8192, Layout.NN),
    *_group(
        "prefill", (4096, 6144, 4096), (4096, 28672, 4096), (4096, 4096, 14336), (2048, 10240, 8192),
        (2048, 8192, 28672), (4096, 7168, 8192), (2048, 4608, 3584), (4096, 2112, 7168), (4096, 24576, 1536),
    ),
    *_decode((1, 16, 64), (6144, 4096), (28672, 4096), (4096, 14336)),
    *_group("few rows", (128, 8192, 8192), (256, 7168, 16384)),
    *_group("split-K", (512, 512, 16384), (64, 512, 16384)),
    *_group("odd", (1000, 1000, 1000), (4096, 4104, 4096), (1024, 50257, 768), (4095, 4097, 4093)),
    Shape(SEED_GROUP, 4096, 4096, 4096, Layout.NN, DType.FLOAT16),
)  # fmt: skip

HELD_OUT: tuple[Shape, ...] = (
    *_group("squares", *((s, s, s) for s in (768, 1536, 3072, 5120, 10240))),
    Shape("squares", 5120, 5120, 5120, Layout.NN),
    *_group(
        "prefill", (4096, 11008, 4096), (2048, 5120, 13824), (8192, 1280, 8192), (3000, 14336, 4096),
        (1024, 24576, 2048),
    ),
    *_decode((2, 8, 32), (7168, 2048), (5120, 13824)),
    *_group("few rows", (192, 5120, 5120), (384, 4096, 7168)),
    *_group("split-K", (256, 256, 32768), (128, 1024, 24576)),
    *_group("odd", (777, 3333, 1111), (512, 32001, 4096), (2049, 2050, 2051)),
)  # fmt: skip


def select(shapes: Sequence[Shape], only: Sequence[str]) -> tuple[Shape, ...]:
    """The shapes that any word of ``only`` names, by group, by extents or in full; all for no word.

    Raises:
        ShapesError: a word names none of them.
    """
    for word in only:
        if not any(_named(shape, word) for shape in shapes):
            groups = ", ".join(dict.fromkeys(shape.group for shape in shapes))
            raise ShapesError(
                f"no shape is called {word!r}; give a group ({groups}), extents such as"
                f" {shapes[0].extents}, or a full name such as {shapes[0].name}; --held-out chooses the"
                " shapes that are held out"
            )
    return tuple(shape for shape in shapes if not only or any(_named(shape, word) for word in only))


def _named(shape: Shape, word: str) -> bool:
    return word in (shape.group, shape.extents, shape.name)
