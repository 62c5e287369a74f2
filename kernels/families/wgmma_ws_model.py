"""The clocks that a launch of family ``wgmma_ws`` should take: the model that orders its first picks."""

from __future__ import annotations

from kernels.families.wgmma_ws_budgets import (
    MULTIPLY_ADDS,
    grid,
    kept_registers,
    row_alignment,
    sum_registers,
)
from kernels.families.wgmma_ws_knobs import Knobs
from kernels.families.wgmma_ws_walk import running
from tilewright.device import DeviceSpec
from tilewright.problem import GemmProblem

# The share of wgmma's peak that main loops reach; per multiprocessor and clock bytes from L2, from shared
# memory and from DRAM. Fitted to clocks that ncu read on an H200, those of parts and of clusters to times
# (docs/hopper.md).
_REACHED = 0.975
_L2_BYTES = 64
_SMEM_BYTES = 128
_PART_BYTES = 18  # written and read again, of parts of k
_DRAM_BYTES = 20
_TURN_CYCLES = 1500  # first loads and turn-over of a tile,
_SUM_CYCLES = 20  # and storing one sum of each thread, where nothing hides them
_HIDDEN = 0.8  # share of both that ping-pong hides, of the latter that a store behind the next tile hides
_POWER_BYTES = 250  # that a block loads: their power costs a clock, mostly whoever shares them
_UNSHARED = 0.1  # share of that power that is spent on a byte once for all of a cluster
_EVEN = 0.94  # of that power where waves are whole lines, whose neighbours share more
_UNHIDDEN = 0.1  # share of the lesser of DRAM's time and the rest that does not overlap the greater
_LAUNCH_CYCLES = 3000
_PARTS_CYCLES = 2000  # of adding up parts, however small, and what
_LATE_CYCLES = 1500  # it starts later where the registers of several consumers leave the kernel after no room
_SHARES_CYCLES, _SHARES_BYTES = 3000, 30  # the same where every block adds up its share,
_TURNS_BYTES = 50  # and one of two consumers leaves its sums while the other multiplies


def cycles(k: Knobs, problem: GemmProblem, device: DeviceSpec) -> float:
    """Clocks that a launch should take, for ranking only.

    The slowest of tensor cores, L2 and shared memory for a unit, times units of a multiprocessor, but at
    least the time that DRAM needs; after the cost model of DeepSeek's DeepGEMM.
    """
    depth = -(-problem.k // (k.split_k * k.cluster_k)) * problem.dtype.size
    extent, width = k.share
    multiplied = k.tile_m * k.tile_n * depth / 2 / (_REACHED * MULTIPLY_ADDS)
    loaded = (k.tile_m / k.cluster_n + k.tile_n / k.cluster_m) * depth / _L2_BYTES
    if row_alignment(problem) < 128:
        loaded *= 2  # a panel's row lies in two lines
    read = k.consumers * (extent + extent // 64 * width) * depth / _SMEM_BYTES
    if k.schedule == "pingpong":
        read /= k.consumers  # they read in turns
    turn = _TURN_CYCLES + _SUM_CYCLES * sum_registers(k, problem) + (1000 if k.cluster_k > 1 else 0)
    start = _LAUNCH_CYCLES + 100 * (k.cluster - 1)
    hidden = 0.0
    if k.schedule == "pingpong":
        hidden = _HIDDEN * turn
    elif kept_registers(k) and k.consumers > 1:
        hidden = _HIDDEN * _SUM_CYCLES * sum_registers(k, problem)
    blocks = grid(k, device)
    units = blocks.tiles(problem) * problem.batch * k.split_k
    waves = -(-units * k.cluster_k // (running(k.cluster, device) * k.cluster))
    operands = (problem.m + problem.n) * problem.k * problem.dtype.size * problem.batch
    asked = k.tile_m / k.cluster_n + k.tile_n / k.cluster_m
    power = ((1 - _UNSHARED) * (k.tile_m + k.tile_n) + _UNSHARED * asked) * depth / _POWER_BYTES
    if k.even_waves:
        power *= _EVEN
    busy = waves * (max(multiplied, loaded, read) + turn - hidden + power) + hidden
    streamed = operands / (_DRAM_BYTES * device.units)
    return max(busy, streamed) + _UNHIDDEN * min(busy, streamed) + _adding_up(k, problem, device) + start


def _adding_up(k: Knobs, problem: GemmProblem, device: DeviceSpec) -> float:
    """Clocks from the sums of parts to those of tiles."""
    if k.split_k == 1:
        return 0.0
    part = problem.m * problem.n * problem.batch * 8 / device.units
    if k.reduction == "shares":
        in_turns = k.schedule == "cooperative" and k.consumers == 2 and not k.promote
        return _SHARES_CYCLES + (k.split_k - 1) * part / (_TURNS_BYTES if in_turns else _SHARES_BYTES)
    return _PARTS_CYCLES + (_LATE_CYCLES if k.consumers > 1 else 0) + k.split_k * part / _PART_BYTES
