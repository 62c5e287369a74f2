"""The shapes of the suite, those held out, and shapes from a file.

Weights are stored N x K (layout nt) unless another layout is said. A group is what figures are averaged over.
Tune the search on :data:`SUITE`, judge it by :data:`HELD_OUT`: the two share no shape.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tilewright.errors import InvalidProblem, TilewrightError
from tilewright.schema.problem import MAX_EXTENT, DType, GemmProblem, Layout

SEED_GROUP = "seed 003"


class ShapesError(TilewrightError):
    """A list of shapes breaks a rule, or a selection matches none; the message says which."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """One problem of a suite, whatever its element type.

    Attributes:
        group: what it is an example of.
        m, n, k: extents.
        layout: how A and B are stored.
        accumulate: type of the running sum; None for the default of the element type.
    """

    group: str
    m: int
    n: int
    k: int
    layout: Layout = Layout.NT
    accumulate: DType | None = None

    @property
    def extents(self) -> str:
        """``MxNxK``."""
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def name(self) -> str:
        """Extents, layout and, where it is not the default one, the type of the sum."""
        return "-".join(filter(None, (self.extents, self.layout, self.accumulate)))

    def problem(self, dtype: DType) -> GemmProblem | None:
        """The problem in an element type; None if the type has no such one.

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


class _Given(BaseModel):
    """A shape as written in a file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    m: int = Field(ge=1, le=MAX_EXTENT)
    n: int = Field(ge=1, le=MAX_EXTENT)
    k: int = Field(ge=1, le=MAX_EXTENT)
    layout: Layout = Field(default=Layout.NT, strict=False)
    accumulate: DType | None = Field(default=None, strict=False)
    group: str = Field(default="given", min_length=1)


def read_shapes(path: Path) -> tuple[Shape, ...]:
    """Shapes of a JSON file: a list of objects with ``m``, ``n``, ``k`` and, where wanted, ``layout``,
    ``accumulate`` and ``group``.

    Raises:
        ShapesError: the file cannot be read, an entry breaks a rule, or a shape is there twice.
    """
    try:
        given = TypeAdapter(list[_Given]).validate_json(path.read_bytes())
    except OSError as error:
        raise ShapesError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        raise ShapesError(f"{path}: {'; '.join(map(_complaint, error.errors()))}") from error
    shapes = tuple(Shape(one.group, one.m, one.n, one.k, one.layout, one.accumulate) for one in given)
    _refuse_repeats(path, shapes)
    return shapes


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
                f" {shapes[0].extents}, or a full name such as {shapes[0].name}"
            )
    return tuple(shape for shape in shapes if not only or any(_named(shape, word) for word in only))


def _named(shape: Shape, word: str) -> bool:
    return word in (shape.group, shape.extents, shape.name)


def _refuse_repeats(path: Path, shapes: Sequence[Shape]) -> None:
    if not shapes:
        raise ShapesError(f"{path} holds no shape; give at least one object with m, n and k")
    names = [shape.name for shape in shapes]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ShapesError(f"{path} has {twice} twice; keep one")


def _complaint(item: object) -> str:
    assert isinstance(item, dict)
    place = ".".join(str(part) for part in item["loc"])
    return f"entry {place}: {item['msg']}" if place else str(item["msg"])
