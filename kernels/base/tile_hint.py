"""``TileHint``: the tiling that another library reports for its kernel."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class TileHint:
    """The tiling of a kernel, in terms of a row-major D.

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

    @property
    def variants(self) -> tuple[TileHint, ...]:
        """The hint and its substitutes, the best one first: its transpose, then both without clusters."""
        unclustered = dataclasses.replace(self, cluster=None)
        return self, self._transposed, unclustered, unclustered._transposed

    @property
    def _transposed(self) -> TileHint:
        cluster = self.cluster and (self.cluster[1], self.cluster[0])
        return dataclasses.replace(self, tile_m=self.tile_n, tile_n=self.tile_m, cluster=cluster)
