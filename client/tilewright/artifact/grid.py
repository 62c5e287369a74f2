"""``Grid``: the blocks of a launch."""

from __future__ import annotations

import dataclasses

from tilewright.problem import GemmProblem


@dataclasses.dataclass(frozen=True, slots=True)
class Grid:
    """How the grid follows from the problem: (tiles, split_k, batch) blocks, or persistent ones along x.

    Attributes:
        tile_m, tile_n: extents of D that one tile covers.
        split_k: blocks that share one tile, each summing a part of k.
        max_blocks: bound on the blocks of a persistent kernel, whose blocks walk over tiles, splits and
            batch; 0 for a kernel that is not persistent.
        cluster_m, cluster_n: tiles that a cluster of blocks computes together; tiles come in whole clusters.
        cluster_k: blocks of a cluster that share the k of a tile.
        stream_k: a persistent kernel that shares out k where tiles alone would not fill its blocks.
    """

    tile_m: int
    tile_n: int
    split_k: int = 1
    max_blocks: int = 0
    cluster_m: int = 1
    cluster_n: int = 1
    cluster_k: int = 1
    stream_k: bool = False

    def tiles(self, problem: GemmProblem) -> int:
        """Tiles of one D."""
        clusters_m = -(-problem.m // (self.tile_m * self.cluster_m))
        clusters_n = -(-problem.n // (self.tile_n * self.cluster_n))
        return clusters_m * clusters_n * self.cluster_m * self.cluster_n

    def blocks(self, problem: GemmProblem) -> tuple[int, int, int]:
        """The launch grid."""
        tiles = self.tiles(problem)
        if not self.max_blocks:
            return tiles, self.split_k, problem.batch
        cluster = self.cluster_m * self.cluster_n * self.cluster_k
        most = self.max_blocks // cluster * cluster
        blocks = tiles * self.split_k * self.cluster_k * problem.batch
        return (most if self.stream_k else min(blocks, most)), 1, 1
