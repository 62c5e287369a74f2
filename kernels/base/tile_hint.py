"""``TileHint``: how the kernel of another library divides a GEMM, as far as that library tells."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class TileHint:
    """How a kernel divides the work, in terms of a row-major D.

    Attributes:
        tile_m, tile_n: rows and columns of D that a CTA computes.
        tile_k: k of one stage in elements, or None if unknown.
        cluster: tiles of a cluster along m and along n, or None for a kernel without clusters.
        split_k: CTAs that split the k of a tile.
        stages: k tiles in shared memory, or None if unknown.
    """

    tile_m: int
    tile_n: int
    tile_k: int | None = None
    cluster: tuple[int, int] | None = None
    split_k: int = 1
    stages: int | None = None

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TileHint:
        """The inverse of ``dataclasses.asdict``, also after JSON."""
        cluster = data["cluster"]
        return cls(**data | {"cluster": cluster and tuple(cluster)})

    @property
    def variants(self) -> tuple[TileHint, ...]:
        """The hint and its substitutes, the best one first: the transposed tile, which loads as many
        bytes, then both without clusters."""
        alone = dataclasses.replace(self, cluster=None)
        return self, self._transposed, alone, alone._transposed

    @property
    def _transposed(self) -> TileHint:
        cluster = self.cluster and (self.cluster[1], self.cluster[0])
        return dataclasses.replace(self, tile_m=self.tile_n, tile_n=self.tile_m, cluster=cluster)
