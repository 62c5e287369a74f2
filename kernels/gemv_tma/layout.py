"""k partitions, shared memory and grid of family ``gemv_tma``, as functions of a config and a problem."""

from __future__ import annotations

from kernels.common import cuda
from kernels.gemv.shape import GemvShape
from kernels.gemv_tma.config import K_CHUNK_BYTES, MAX_STAGES, Knobs
from tilewright.artifact import Grid
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem

_BARRIER_BYTES = 8
_ALIGNMENT = 1024  # bytes after which the swizzle repeats


def k_chunk_elements(problem: GemmProblem) -> int:
    """k of a k chunk."""
    return K_CHUNK_BYTES // problem.dtype.size


def activation_k_chunks(config: Knobs, problem: GemmProblem) -> int:
    """k chunks of the longest k partition: those of the activations that shared memory holds."""
    return -(-problem.k // (k_chunk_elements(problem) * config.cluster_k))


def activation_bytes(config: Knobs, problem: GemmProblem) -> int:
    """Bytes of the activations that shared memory holds."""
    return activation_k_chunks(config, problem) * GemvShape.of(problem).activation_rows * K_CHUNK_BYTES


def max_k(config: Knobs, problem: GemmProblem) -> int:
    """The largest k whose partitions are no longer than those of the problem."""
    return config.cluster_k * activation_k_chunks(config, problem) * k_chunk_elements(problem)


def smem_beside_ring(config: Knobs, problem: GemmProblem) -> int:
    """Dynamic shared memory beside the ring, in bytes.

    Activations with a barrier a stage, partials of every warp with 4 words of padding a row, the buffers in
    which a cluster exchanges partials, and alignment.
    """
    rows, element = GemvShape.of(problem).activation_rows, cuda.accumulator_bytes(problem)
    activation_stages = -(-activation_k_chunks(config, problem) // config.stage_k_chunks)
    activations = activation_bytes(config, problem) + activation_stages * _BARRIER_BYTES
    partials = config.warps * rows * (config.tile_weight_rows + 4) * element
    exchanged = 2 * (rows * config.tile_weight_rows * element + _BARRIER_BYTES)
    return activations + partials + (exchanged if config.cluster_k > 1 else 0) + _ALIGNMENT


def _ring_stage_bytes(config: Knobs) -> int:
    """A stage of the ring and its two barriers."""
    return config.stage_bytes + 2 * _BARRIER_BYTES


def smem_bytes(config: Knobs, problem: GemmProblem) -> int:
    """Dynamic shared memory in bytes."""
    return config.stages * _ring_stage_bytes(config) + smem_beside_ring(config, problem)


def smem_left(config: Knobs, problem: GemmProblem, device: DeviceSpec) -> int:
    """Bytes of shared memory that are left for the ring."""
    return device.smem_per_block - smem_beside_ring(config, problem)


def ring_stages(config: Knobs, ring_bytes: int, problem: GemmProblem, device: DeviceSpec) -> int:
    """Stages of a ring of about ``ring_bytes``, or as many as fit; may be fewer than any legal number."""
    most = min(MAX_STAGES, smem_left(config, problem, device) // _ring_stage_bytes(config))
    return min(max(2, -(-ring_bytes // config.stage_bytes)), most)


def grid(config: Knobs, problem: GemmProblem, device: DeviceSpec) -> Grid:
    """Persistent CTAs, one for each SM, as many as are a multiple of the cluster."""
    shape = GemvShape.of(problem)
    rows = config.tile_weight_rows, shape.activation_rows
    tile = rows if shape.weights == "a" else rows[::-1]
    return Grid(*tile, max_blocks=usable_sms(config, device), cluster_k=config.cluster_k)


def usable_sms(config: Knobs, device: DeviceSpec) -> int:
    """SMs that clusters of this size can fill."""
    return max(config.cluster_k, cuda.room_in_clusters(config.cluster_k, device))


def balance(config: Knobs, problem: GemmProblem, device: DeviceSpec) -> float:
    """Fraction of the usable SMs' time that computes, 0 .. 1; the rest waits for the last work tiles."""
    geometry = grid(config, problem, device)
    work_tiles = geometry.tiles(problem) * problem.batch * config.cluster_k
    rounds = -(-work_tiles // geometry.ctas(problem)[0])
    return work_tiles / (rounds * usable_sms(config, device))
