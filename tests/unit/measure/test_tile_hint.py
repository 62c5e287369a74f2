"""What cuBLASLt tells of its algorithms, and the configs that follow it; no GPU."""

from __future__ import annotations

from typing import Any

import pytest
from device_samples import HOPPER
from toy_family import CUDA_DEVICE, PROBLEM, TOY, ToyFamily
from tune_lab import Lab

from kernels.base.tile_hint import TileHint
from kernels.mma_sync.family import MMA_SYNC
from kernels.registry import FAMILIES, families_for
from kernels.wgmma.family import WGMMA
from kernels.wgmma_ws.family import WGMMA_WS
from tilewright.artifact import Grid
from tilewright.errors import DeviceUnavailable, LaunchError
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem, Layout
from tuner.devices.base import VendorChoice
from tuner.devices.cublaslt_tile_hint import tile_hint_of
from tuner.devices.host import HostDevice
from tuner.measure.vendor import vendor_tile_hints
from tuner.workers.process import WorkerDied, WorkerError, WorkerTimeout

AMPERE = DeviceSpec("cuda", "sm_80", "A100", 108, 80 << 30, 40 << 20, 163 << 10, 164 << 10)
SQUARE = GemmProblem(4096, 4096, 4096)
DECODE = GemmProblem(64, 4096, 14336)
BITS = GemmProblem(256, 256, 4096, DType.UINT1, Layout.NT)


def detail(tile: str, cluster: str = "SHAPE_AUTO", stages: str = "STAGES_UNDEFINED", split_k: int = 1) -> Any:
    return {"tile": tile, "cluster": cluster, "stages": stages, "split_k": split_k}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (
            detail("TILE_112x128", "SHAPE_1x2x1", "STAGES_64xAUTO"),
            TileHint(tile_m=128, tile_n=112, tile_k=64, cluster=(2, 1)),
        ),
        (
            detail("TILE_64x32", "SHAPE_4x1x1", "STAGES_128xAUTO", 4),
            TileHint(tile_m=32, tile_n=64, tile_k=128, cluster=(1, 4), split_k=4),
        ),
        (
            detail("TILE_128x256", stages="STAGES_32x4", split_k=0),
            TileHint(tile_m=256, tile_n=128, tile_k=32, stages=4),
        ),
        (detail("TILE_128x256"), TileHint(tile_m=256, tile_n=128)),
        (detail("TILE_UNDEFINED"), None),
        (detail("731"), None),
    ],
)
def test_rows_of_a_tile_of_cublaslt_run_along_n(told: dict[str, Any], expected: TileHint | None) -> None:
    assert tile_hint_of(told) == expected


def test_the_waves_that_cublaslt_counted_on_an_h200_tell_the_same_axes() -> None:
    """1024 x 50257 x 768, TILE_128x256 with 11.909 waves of 132 SMs: ceil(50257 / 128) = 393
    tiles along n times 4 along m are 1572. The other way round 197 times 8 would be 1576, 11.939 waves."""
    hint = tile_hint_of(detail("TILE_128x256"))
    assert hint is not None
    tiles = Grid(hint.tile_m, hint.tile_n).tiles(GemmProblem(1024, 50257, 768))
    assert round(tiles / 132, 3) == 11.909


def test_variants_of_a_tile_hint() -> None:
    hint = TileHint(256, 96, cluster=(1, 2), split_k=2)
    assert hint.variants == (
        hint,
        TileHint(96, 256, cluster=(2, 1), split_k=2),
        TileHint(256, 96, split_k=2),
        TileHint(96, 256, split_k=2),
    )


def knobs(config: Config, *names: str) -> tuple[Any, ...]:
    return tuple(config[name] for name in names)


TILE = ("tile_m", "tile_n", "cluster_m", "cluster_n", "split_k", "swap_ab")


BOTH = {"cooperative", "pingpong"}


@pytest.mark.parametrize(
    ("problem", "hint", "expected", "schedules"),
    [
        (SQUARE, TileHint(128, 112, 64, (2, 1)), (128, 112, 2, 1, 1, 0), BOTH),
        (SQUARE, TileHint(160, 128, 64, (1, 2)), (128, 160, 2, 1, 1, 0), BOTH),  # wgmma has rows in 64s
        (SQUARE, TileHint(128, 168, 64, (2, 1)), (128, 168, 2, 1, 1, 0), BOTH),  # loaded alternately
        (SQUARE, TileHint(128, 128, 64, (1, 4)), (128, 128, 1, 4, 1, 0), BOTH),  # not searched, but legal
        # 128 work tiles for 132 SMs: nothing alternates. Weights fill wgmma's rows.
        (DECODE, TileHint(32, 64, 64, (2, 1)), (32, 64, 2, 1, 1, 1), {"cooperative"}),
        (DECODE, TileHint(64, 128, 64, (1, 2), 4), (64, 128, 1, 2, 4, 0), {"cooperative"}),
    ],
)
def test_wgmma_ws_follows(
    problem: GemmProblem, hint: TileHint, expected: tuple[int, ...], schedules: set[str]
) -> None:
    configs = WGMMA_WS.configs_from_hint(hint, problem, HOPPER)
    assert {config["schedule"] for config in configs} == schedules
    for config in configs:
        assert knobs(config, *TILE) == expected
        assert config["tile_k"] == 64
        assert WGMMA_WS.why_invalid(config, problem, HOPPER) is None


def test_wgmma_ws_takes_turns_only_where_registers_allow() -> None:
    # 128 x 256 accumulators over one consumer's 128 threads are 256 registers each; over two consumers' 128.
    (config,) = WGMMA_WS.configs_from_hint(TileHint(128, 256, 64, (2, 1)), SQUARE, HOPPER)
    assert knobs(config, "schedule", "consumers_m", "consumers_n", "stages") == ("cooperative", 2, 1, 4)


def test_wgmma_has_neither_clusters_nor_a_split_k() -> None:
    (config,) = WGMMA.configs_from_hint(TileHint(128, 256, 64, (2, 1)), SQUARE, HOPPER)
    # A stage of (128 + 256) * 64 * 2 + 16 = 49,168 bytes: 4 of them in 227 KiB.
    assert knobs(config, "tile_m", "tile_n", "tile_k", "stages", "warpgroups") == (128, 256, 64, 4, 2)
    assert WGMMA.configs_from_hint(TileHint(128, 256, 64, (2, 1), split_k=2), SQUARE, HOPPER) == []


def test_mma_sync_follows_kernels_without_clusters() -> None:
    (config,) = MMA_SYNC.configs_from_hint(TileHint(256, 128, 32, None, 2, 4), SQUARE, AMPERE)
    names = ("tile_m", "tile_n", "tile_k", "stages", "split_k", "warps_m", "warps_n")
    assert knobs(config, *names) == (256, 128, 32, 4, 2, 4, 2)
    assert MMA_SYNC.why_invalid(config, SQUARE, AMPERE) is None
    assert MMA_SYNC.configs_from_hint(TileHint(256, 128, 64, (2, 1)), SQUARE, HOPPER) == []
    assert MMA_SYNC.configs_from_hint(TileHint(250, 128), SQUARE, AMPERE) == []
    assert MMA_SYNC.configs_from_hint(TileHint(128, 128, 8), BITS, AMPERE) == []


def test_what_no_family_can_follow_gives_no_configs() -> None:
    for family in families_for(SQUARE, HOPPER).values():
        assert family.configs_from_hint(TileHint(100, 100, split_k=7), SQUARE, HOPPER) == []


class Telling(HostDevice):
    """A CPU whose vendor library tells of its algorithms."""

    def __init__(self, hints: list[TileHint | None]) -> None:
        super().__init__()
        self._told = hints

    def vendor(self, problem: GemmProblem, sets: Any) -> list[VendorChoice]:
        del problem, sets
        return [VendorChoice("lab", [], {}, hint) for hint in self._told]


def test_the_first_two_different_tile_hints_are_followed() -> None:
    problem = GemmProblem(32, 32, 32, "float32")
    first, second, third = (TileHint(64, 64 + number) for number in range(3))
    assert vendor_tile_hints(Telling([first, None, first, second, third]), problem) == [first, second]
    assert vendor_tile_hints(Telling([third]), problem) == [third]
    assert vendor_tile_hints(Telling([None]), problem) == []
    assert vendor_tile_hints(HostDevice(), problem) == []
    assert vendor_tile_hints(HostDevice(), GemmProblem(32, 32, 32)) == []  # no BLAS has float16


class FollowingToy(ToyFamily):
    """Follows a hint's tile."""

    def configs_from_hint(self, hint: TileHint, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        assert (problem, device) == (PROBLEM, CUDA_DEVICE)
        return [self.make(hint.tile_m, 3), self.make(hint.tile_m, 99)]  # 99 stages are not valid


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setitem(FAMILIES, "toy", FollowingToy())
    return Lab(spec=CUDA_DEVICE)


def first_configs(lab: Lab) -> list[Config]:
    return [trial.config for trial in lab.recorder.kept[:3]]


def test_configs_after_the_vendor_come_before_heuristic_configs(lab: Lab) -> None:
    lab.bench.on_tile_hints = lambda: [TileHint(48, 48)]
    lab.tune(max_trials=12)
    assert first_configs(lab) == [TOY.make(48, 3), TOY.make(32, 2), TOY.make(64, 2)]
    assert [trial.origin for trial in lab.recorder.kept[:3]] == ["initial"] * 3


def test_without_a_tile_hint_the_order_stays(lab: Lab) -> None:
    lab.tune(max_trials=12)
    assert first_configs(lab)[:2] == [TOY.make(32, 2), TOY.make(64, 2)]


@pytest.mark.parametrize(
    "error",
    [
        DeviceUnavailable("the vendor baseline needs nvmath-python"),
        LaunchError("out of memory on the device"),
        WorkerDied("the process ended with SIGSEGV", "SIGSEGV"),
        WorkerTimeout("no answer within 20 s"),
    ],
)
def test_a_vendor_library_that_fails_fails_no_job(lab: Lab, error: WorkerError, caplog: Any) -> None:
    def fail() -> list[TileHint]:
        raise error

    lab.bench.on_tile_hints = fail
    with caplog.at_level("INFO", "tilewright.job"):
        assert lab.tune(max_trials=12) is not None
    assert f"no configs from the vendor library: {error}" in caplog.text
    assert len(lab.recorder.kept) == 12


def test_a_resumed_job_goes_on_though_the_vendor_now_tells_something_else(lab: Lab) -> None:
    lab.bench.on_tile_hints = lambda: [TileHint(48, 48)]
    lab.tune(max_trials=12)
    resumed = Lab(lab.recorder.kept[:5], CUDA_DEVICE)
    resumed.bench.on_tile_hints = lambda: [TileHint(96, 96)]
    assert resumed.tune(max_trials=12) is not None
    assert resumed.recorder.kept[:5] == lab.recorder.kept[:5]
    assert len(resumed.recorder.kept) == 12
