"""The enumeration against brute force, and the messages of a refused config."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
from device_samples import A100 as GPU
from device_samples import H200, gpu
from sweeps import every

from kernels import registry
from kernels.arch import ARCHS, unpacks_float8
from kernels.base.family import Family
from kernels.base.spec import SOURCES
from kernels.common.cuda import MAX_EXTENT, target_of
from kernels.host.family import HOST
from kernels.mma_sync.family import MMA_SYNC
from kernels.prior import prior
from kernels.registry import FAMILIES, RENAMED, families_for, family_named
from kernels.simt.family import SIMT
from tilewright import Config, DeviceSpec, DType, GemmProblem, Layout
from tilewright.errors import DeviceUnavailable
from tilewright.launch.host import host_arch
from tuner.search.points import valid_points

CPU = DeviceSpec("host", host_arch(), "CPU", 2, 8 << 30, 32 << 20)
HALF = GemmProblem(512, 768, 4096)
FLAT = GemmProblem(16, 64, 256)
SINGLE = GemmProblem(100, 2000, 512, dtype=DType.FLOAT32)
DOUBLE = GemmProblem(2048, 24, 8192, dtype=DType.FLOAT64, layout=Layout.TT)


def label(value: object) -> str:
    """A name for a test case, the same in every process."""
    if isinstance(value, Family | DeviceSpec):
        return value.name
    return ",".join(sorted(value)) if isinstance(value, set) else str(value)


def device_of(family: Family[Any]) -> DeviceSpec:
    return GPU if family.device_kind == "cuda" else CPU


def everything(family: Family[Any]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(len(knob.values)) for knob in family.knobs))


def wanted(family: Family[Any], point: tuple[int, ...], problem: GemmProblem) -> bool:
    """Valid by the one predicate, and no search rule objects."""
    device, config = device_of(family), family.at(point)
    if family.why_invalid(config, problem, device):
        return False
    knobs = family.knob_values(config)
    return not any(rule.why(knobs, problem, device) for rule in family.search_rules)


@pytest.mark.parametrize("problem", every(2, [SINGLE, DOUBLE]))
def test_simt_enumerates_exactly_what_brute_force_finds(problem: GemmProblem) -> None:
    found = [tuple(point) for point in valid_points(SIMT, problem, GPU).tolist()]
    assert len(found) > 100
    assert len(set(found)) == len(found)
    assert found == [point for point in everything(SIMT) if wanted(SIMT, point, problem)]


@pytest.mark.parametrize(("family", "problem"), [(MMA_SYNC, FLAT), (HOST, SINGLE)], ids=label)
def test_sampled_points_are_enumerated_if_and_only_if_wanted(
    family: Family[Any], problem: GemmProblem
) -> None:
    """Spaces too large for brute force: points drawn blindly, and neighbours of enumerated points."""
    found = set(map(tuple, valid_points(family, problem, device_of(family)).tolist()))
    source = random.Random(5)
    drawn = [tuple(source.randrange(len(knob.values)) for knob in family.knobs) for _ in range(1500)]
    for point in source.sample(sorted(found), min(len(found), 500)):
        knob = source.randrange(len(point))
        value = source.randrange(len(family.knobs[knob].values))
        drawn += [point, (*point[:knob], value, *point[knob + 1 :])]
    verdicts = {point: wanted(family, point, problem) for point in drawn}
    assert {point for point in verdicts if point in found} == {p for p, good in verdicts.items() if good}
    assert 100 < sum(verdicts.values()) < len(verdicts)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
def test_rules_read_the_knobs_that_they_name(family: Family[Any]) -> None:
    """The search of a space calls a rule once for the values of the knobs that it names."""
    names = {knob.name for knob in family.knobs}
    read: set[str] = set()

    class Recorder(family.knobs_type):  # type: ignore[misc, name-defined]
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

    source = random.Random(3)
    for rule in family.rules + family.search_rules:
        read.clear()
        for _ in range(300):
            knobs = Recorder(**{knob.name: source.choice(knob.values) for knob in family.knobs})
            rule.why(knobs, HALF, device_of(family))
        assert names & read <= set(rule.reads), rule.why


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
def test_knobs_are_described(family: Family[Any]) -> None:
    names = [knob.name for knob in family.knobs]
    assert len(set(names)) == len(names)
    for knob in family.knobs:
        assert set(knob.values) <= set(knob.legal), knob.name
        assert len(set(knob.legal)) == len(knob.legal), knob.name
        assert knob.doc, knob.name
    for rule in family.rules + family.search_rules:
        assert set(rule.reads) <= set(names)


def test_at_gives_the_searched_values() -> None:
    # tile_m searches 16, 32, 64, 128, 256 of mma_sync: its second value is 32, not the legal list's third.
    point = (1,) + (0,) * (len(MMA_SYNC.knobs) - 1)
    config = MMA_SYNC.at(point)
    assert config.family == "mma_sync"
    assert (config["tile_m"], config["tile_n"], config["stages"]) == (32, 32, 1)
    with pytest.raises(ValueError, match="zip"):
        MMA_SYNC.at(point[:-1])


@pytest.mark.parametrize(("family", "problem"), [(SIMT, DOUBLE), (MMA_SYNC, HALF), (HOST, SINGLE)], ids=label)
def test_at_inverts(family: Family[Any], problem: GemmProblem) -> None:
    for point in valid_points(family, problem, device_of(family))[:20_000:97]:
        config = family.at(point)
        values = [knob.values.index(config[knob.name]) for knob in family.knobs]
        assert values == list(point)
        assert family.config(family.knob_values(config)) == config


GOOD = SIMT.heuristic_configs(SINGLE, GPU)[0]


def changed(**knobs: int | str) -> Config:
    return Config.of("simt", dict(GOOD.knobs) | knobs)


def test_unknown_missing_and_foreign_knobs() -> None:
    names = ", ".join(knob.name for knob in SIMT.knobs)
    message = f"simt needs exactly the knobs {names}"
    missing = Config.of("simt", {name: value for name, value in GOOD.knobs if name != "swizzle_size"})
    foreign = Config.of("mma_sync", dict(GOOD.knobs))
    for config in (changed(color="red"), missing, foreign):
        assert SIMT.why_invalid(config, SINGLE, GPU) == message


def test_values_outside_the_legal_ones() -> None:
    assert SIMT.why_invalid(changed(stages=3), SINGLE, GPU) == "stages must be one of (0, 1, 2), got 3"
    reason = SIMT.why_invalid(changed(raster="z"), SINGLE, GPU)
    assert reason == "raster must be one of ('m', 'n'), got 'z'"


def test_a_valid_config_has_no_reason() -> None:
    assert SIMT.why_invalid(GOOD, SINGLE, GPU) is None


UNSUPPORTED = [
    (
        MMA_SYNC,
        SINGLE,
        GPU,
        "mma_sync has no float32: tensor cores round it to tfloat32, which a problem asks for by name",
    ),
    (
        MMA_SYNC,
        GemmProblem(64, 64, 64, dtype=DType.INT8, layout=Layout.TN),
        GPU,
        "mma_sync reads int8 in layout nt, not tn: ldmatrix transposes 16-bit elements only",
    ),
    (
        SIMT,
        GemmProblem(64, 64, 64, acc_dtype=DType.FLOAT16),
        GPU,
        "simt accumulates in float32, float64 or int32, not float16",
    ),
    (SIMT, SINGLE, CPU, "needs an NVIDIA GPU, CPU is a host device"),
    (SIMT, GemmProblem(2**28, 1, 1), GPU, "m, n and k must be at most 268434432"),
    (SIMT, GemmProblem(1, 1, 1, batch=65536), GPU, "batch must be at most 65535"),
    (
        SIMT,
        SINGLE,
        DeviceSpec("cuda", "sm_75", "T4", 40, 1, 1),
        f"no kernels for sm_75; use one of {', '.join(ARCHS)}",
    ),
]


@pytest.mark.parametrize(("family", "problem", "device", "reason"), UNSUPPORTED, ids=label)
def test_unsupported(family: Family[Any], problem: GemmProblem, device: DeviceSpec, reason: str) -> None:
    assert family.why_unsupported(problem, device) == reason
    assert list(valid_points(family, problem, device)) == []
    assert family.heuristic_configs(problem, device) == []
    assert family.name not in families_for(problem, device)


@pytest.mark.parametrize("arch", ["sm_75", "sm_130"])
def test_an_architecture_without_kernels_is_told_the_supported_ones(arch: str) -> None:
    supported = ", ".join(ARCHS)
    with pytest.raises(DeviceUnavailable, match=f"no kernels for {arch}; use one of {supported}$"):
        target_of(arch)
    other = dataclasses.replace(GPU, arch=arch)
    reasons = {family.why_unsupported(HALF, other) for family in (MMA_SYNC, SIMT, FAMILIES["wgmma_ws"])}
    assert reasons == {f"no kernels for {arch}; use one of {supported}"}


def test_a_later_minor_version_runs_the_kernels_of_the_one_before() -> None:
    assert [target_of(arch) for arch in ("sm_104", "sm_109", "sm_122")] == ["sm_103", "sm_103", "sm_121"]
    with pytest.raises(DeviceUnavailable, match="no kernels for sm_91"):
        target_of("sm_91")  # sm_90a runs on sm_90 alone
    later = dataclasses.replace(GPU, arch="sm_122")
    for family in (MMA_SYNC, SIMT, FAMILIES["gemv"]):
        problem = SINGLE if family is SIMT else HALF if family is MMA_SYNC else GemmProblem(1, 4096, 4096)
        config = family.heuristic_configs(problem, later)[0]
        assert family.plan(config, problem, later).target == "sm_121"


def test_every_architecture_is_a_target_of_its_own() -> None:
    """sm_90 is compiled with the instructions that only it has, such as wgmma."""
    own = {"sm_90": "sm_90a"}
    assert {arch: target_of(arch) for arch in ARCHS} == {arch: own.get(arch, arch) for arch in ARCHS}


def test_a_later_minor_version_unpacks_8_bit_floats_as_the_one_whose_kernels_it_runs() -> None:
    unpacked = [arch for arch in [*ARCHS, "sm_104", "sm_122"] if unpacks_float8(arch)]
    assert unpacked == ["sm_90", "sm_100", "sm_103", "sm_110", "sm_104"]


def test_what_a_family_refuses_for_its_extents_its_kernels_refuse_too() -> None:
    large = dataclasses.replace(HALF, m=MAX_EXTENT + 1)
    hopper = dataclasses.replace(GPU, arch="sm_90", smem_per_block=227 << 10, smem_per_sm=228 << 10)
    families = families_for(HALF, hopper)
    assert {"wgmma_ws", "wgmma", "mma_sync", "wmma", "simt"} <= set(families)
    for family in families.values():
        plan = family.plan(family.heuristic_configs(HALF, hopper)[0], HALF, hopper)
        reason = "m, n and k must be at most 268434432"
        assert family.why_unsupported(large, hopper) == plan.why_not(large) == reason


def test_a_repack_counts_the_bytes_of_the_longest_row_in_32_bits() -> None:
    """In repack.cuh a lane steps by 32 x 4 chunks of 16 bytes until it is beyond the row, which ends up to 15
    bytes further where zeros come first. Without the margin below 2^28 the number of bytes becomes negative,
    and the lane goes on."""
    source = (SOURCES / "common" / "repack.cuh").read_text()
    assert "first * 16 < end; first += 32 * chunks" in source
    assert "constexpr int chunks = 4;" in source
    step = 32 * 4 * 16
    assert 8 * MAX_EXTENT + 15 + step < 2**31 <= 8 * (2**28 - 1) + step


ODDS = [
    (GemmProblem(96, 10240, 8192), {"wgmma": 1 / 2, "mma_sync": 1 / 8, "wmma": 1 / 8, "simt": 1 / 8}),
    (GemmProblem(64, 64, 64), {"simt": 1 / 8}),
    (GemmProblem(64, 64, 32), {}),
    (GemmProblem(7, 64, 64), {"wgmma_ws": 1 / 8, "wgmma": 1 / 8, "simt": 1 / 8}),
    (GemmProblem(8, 64, 64), {"wgmma_ws": 1 / 2, "wgmma": 1 / 8, "simt": 1 / 8}),
    (GemmProblem(64, 8, 64, layout=Layout.NT), {"wgmma_ws": 1 / 8, "wgmma": 1 / 8, "simt": 1 / 8}),
    (
        GemmProblem(16, 8192, 8192, layout=Layout.NN),
        {"wgmma": 1 / 2, "mma_sync": 1 / 8, "wmma": 1 / 8, "simt": 1 / 8},
    ),
    (GemmProblem(64, 64, 64, batch=1024), {"simt": 1 / 8}),
    (GemmProblem(4096, 4096, 4096, dtype=DType.FLOAT8_E4M3FN), {}),
]


@pytest.mark.parametrize(("problem", "lower"), ODDS, ids=str)
def test_odds_of_families(problem: GemmProblem, lower: dict[str, float]) -> None:
    hopper = dataclasses.replace(GPU, arch="sm_90", smem_per_block=227 << 10, smem_per_sm=228 << 10)
    able = families_for(problem, hopper)
    assert prior(problem, hopper, able) == dict.fromkeys(able, 1.0) | lower
    assert prior(problem, GPU) == dict.fromkeys(families_for(problem, GPU), 1.0)


@pytest.mark.parametrize(
    ("problem", "left_out"),
    [
        (GemmProblem(4096, 4096, 4096), ("simt", "mma_sync", "wmma")),
        (GemmProblem(256, 512, 512), ("simt",)),
        (GemmProblem(16, 8192, 8192), ("simt",)),
        (GemmProblem(64, 64, 32), ()),
        (GemmProblem(64, 28672, 4095), ()),  # rows that TMA cannot load
        (GemmProblem(4096, 4096, 4096, acc_dtype=DType.FLOAT16), ()),
        (GemmProblem(4096, 4096, 4096, DType.FLOAT8_E4M3FN), ()),
    ],
    ids=str,
)
def test_families_that_never_won_have_no_chance_where_races_were_counted(
    problem: GemmProblem, left_out: tuple[str, ...]
) -> None:
    hopper = dataclasses.replace(GPU, arch="sm_90", smem_per_block=227 << 10, smem_per_sm=228 << 10)
    chances = prior(problem, hopper)
    assert {name for name, chance in chances.items() if not chance} == set(left_out) < set(chances)
    assert chances | dict.fromkeys(left_out, 1 / 8) == prior(problem, hopper, left_out)


@pytest.mark.parametrize(("before", "family"), [*RENAMED.items(), ("simt", "simt")])
def test_a_family_is_found_by_its_earlier_name(before: str, family: str) -> None:
    assert family_named(before) is FAMILIES[family]
    assert registry.completed(Config.of(before, {})).family == family


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(KeyError):
        family_named("cublas")


@pytest.mark.parametrize(
    ("problem", "device", "names"),
    [
        (HALF, GPU, {"mma_sync", "wmma", "simt"}),
        (DOUBLE, GPU, {"mma_sync", "simt"}),
        (dataclasses.replace(HALF, layout=Layout.TN), GPU, {"mma_sync", "wmma", "simt"}),
        (SINGLE, CPU, {"host"}),
        *((HALF, gpu(arch), {"mma_sync", "wmma", "simt"}) for arch in ("sm_87", "sm_100", "sm_120")),
        (GemmProblem(16, 512, 2048), gpu("sm_120"), {"gemv", "mma_sync", "wmma", "simt"}),
    ],
    ids=label,
)
def test_families_for(problem: GemmProblem, device: DeviceSpec, names: set[str]) -> None:
    assert set(families_for(problem, device)) == names


@pytest.mark.parametrize(
    ("problem", "copy_bytes"),
    [
        (GemmProblem(65536, 24, 24, dtype="bfloat16"), 8),
        (GemmProblem(64, 4096, 32, batch=3), 8),
        # A CTA computes a whole D, of which it alone reads A and B.
        (GemmProblem(64, 64, 32, batch=2000), 16),
        (GemmProblem(16, 16, 16), 16),
    ],
    ids=str,
)
def test_a_tile_that_many_ctas_load_goes_through_the_l1(problem: GemmProblem, copy_bytes: int) -> None:
    assert MMA_SYNC.heuristic_configs(problem, gpu("sm_90"))[0]["copy_bytes"] == copy_bytes


SIZES = {(2, 3, 5): "direct", (16, 16, 16): "direct", (64, 64, 64): "smem", (4096, 4096, 64): "smem"}


def test_both_copies_of_a_shared_tile_are_searched_and_narrow_ones_of_no_other() -> None:
    def why_not(problem: GemmProblem, copy_bytes: int) -> str | None:
        first = MMA_SYNC.heuristic_configs(problem, gpu("sm_90"))[0]
        config = Config.of(first.family, dict(first.knobs) | {"copy_bytes": copy_bytes})
        return MMA_SYNC.why_not_searched(config, problem, gpu("sm_90"))

    narrow = GemmProblem(65536, 24, 24, dtype="bfloat16")
    assert why_not(narrow, 8) is None
    assert why_not(narrow, 16) is None
    assert "copies of 8 bytes pay for a tile that all CTAs share" in (
        why_not(GemmProblem(4096, 4096, 4096), 8) or ""
    )


def test_k_is_split_further_where_loads_pass_through_registers() -> None:
    """Rows of 4098 bytes are copied two bytes at a time, some 80 loads a thread and k tile: more splits hide
    them. The eighth has no k at all, but shortens the others to five k tiles."""
    problem = GemmProblem(2047, 96, 2049, dtype="bfloat16")
    tiles = {
        (config["tile_m"], config["tile_n"]): config["split_k"]
        for config in MMA_SYNC.heuristic_configs(problem, H200)
        if not config["repack"]
    }
    assert tiles[64, 96] == 8


def test_a_single_cta_stores_from_registers() -> None:
    of = {size: MMA_SYNC.heuristic_configs(GemmProblem(*size), gpu("sm_90"))[0] for size in SIZES}
    assert {size: config["epilogue"] for size, config in of.items()} == SIZES


HEURISTICS = [
    *(GemmProblem(*size, dtype="bfloat16") for size in ((127, 129, 1023), (33, 65, 129), (65536, 24, 24))),
    *(GemmProblem(320, 2048, 1024, layout=layout) for layout in Layout),
    GemmProblem(100, 1024, 1024, dtype="int8"),
    GemmProblem(1023, 1025, 31),
]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
@pytest.mark.parametrize("size", [(1, 1, 1), (8, 16, 64), (16, 8, 1000)])
def test_simt_has_searched_configs_of_tiny_results(size: tuple[int, int, int], dtype: str) -> None:
    assert len(valid_points(SIMT, GemmProblem(*size, dtype=dtype), GPU))


@pytest.mark.parametrize("problem", HEURISTICS, ids=str)
def test_a_search_can_learn_from_heuristic_configs(problem: GemmProblem) -> None:
    """Their values are searched: a config outside of the pool has no neighbours in it."""
    device = gpu("sm_90")
    for family in families_for(problem, device).values():
        for config in family.heuristic_configs(problem, device):
            values = dict(config.knobs)
            outside = {
                knob.name: values[knob.name] for knob in family.knobs if values[knob.name] not in knob.values
            }
            assert not outside, (family.name, outside)
