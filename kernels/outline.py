"""``Outline``: the coarse choices of a GEMM kernel, as far as another library tells of its own."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Outline:
    """How a kernel divides the work, in terms of a row-major D.

    Attributes:
        tile_m, tile_n: rows and columns of D that a block computes.
        tile_k: k of one stage in elements; None where not told.
        cluster: tiles of a cluster along m and along n; None for a kernel that knows no clusters.
        split_k: blocks that share the k of a tile.
        stages: k tiles in shared memory; None where not told.
    """

    tile_m: int
    tile_n: int
    tile_k: int | None = None
    cluster: tuple[int, int] | None = None
    split_k: int = 1
    stages: int | None = None

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Outline:
        """The inverse of ``dataclasses.asdict``, also after JSON."""
        cluster = data["cluster"]
        return cls(**data | {"cluster": cluster and tuple(cluster)})

    @property
    def alike(self) -> tuple[Outline, ...]:
        """Itself and what to follow where it is not valid, the next best one first: its mirror image, which
        loads as many bytes for a product, then both without clusters."""
        alone = dataclasses.replace(self, cluster=None)
        return self, self._mirrored, alone, alone._mirrored

    @property
    def _mirrored(self) -> Outline:
        cluster = self.cluster and (self.cluster[1], self.cluster[0])
        return dataclasses.replace(self, tile_m=self.tile_n, tile_n=self.tile_m, cluster=cluster)
