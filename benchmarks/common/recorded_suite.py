"""The recorded suites: rows of ``suite-DEVICE-DTYPE.json``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from benchmarks.common.pages import ReportError
from benchmarks.common.shapes import Shape
from kernels import registry
from tilewright.schema.config import Config
from tilewright.schema.problem import DType, GemmProblem, Layout


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One shape; the fields are keys of the JSON file, which has more.

    Attributes:
        m, n, k, dtype, layout: the problem.
        ours_us: median time of our kernel.
        ratio_vs_cublaslt_best: median over the rounds of cuBLASLt's time over ours; above 1 we are faster;
            None where cuBLASLt took no part.
        config, family: our kernel.
        accumulate, group, shape: type of the sum, what the shape is an example of, its name.
    """

    m: int
    n: int
    k: int
    dtype: str
    layout: str
    ours_us: float
    ratio_vs_cublaslt_best: float | None
    config: dict[str, Any]
    family: str
    accumulate: str
    group: str
    shape: str

    @property
    def problem(self) -> GemmProblem:
        """What was computed, its D in the suite's type."""
        accumulate = DType(self.accumulate)
        problem = Shape(self.group, self.m, self.n, self.k, Layout(self.layout), accumulate).problem(
            DType(self.dtype)
        )
        assert problem is not None
        return problem


def load_rows(path: Path) -> list[Row]:
    """The rows of a ``suite-DEVICE-DTYPE.json``, families and knobs under today's names.

    Raises:
        ReportError: it is not such a file.
    """
    try:
        return [_current(row) for row in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ReportError(f"{path} is not a list of suite rows: {error}") from error


def _current(found: dict[str, Any]) -> Row:
    row = Row(**{field.name: found[field.name] for field in dataclasses.fields(Row)})
    config = registry.completed(Config.of(row.family, row.config))
    return dataclasses.replace(row, family=config.family, config=dict(config.knobs))
