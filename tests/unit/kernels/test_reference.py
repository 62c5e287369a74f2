"""The reference kernels: complete, valid, compilable for their architectures, with the documents' numbers."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from device_samples import gpu
from sweeps import every, on_generations

from benchmarks.ladder.bank_conflicts import LANES, a_element, accumulator_element, b_element
from kernels.arch import ARCHS
from kernels.compiler.build import build
from kernels.compiler.cubin import code_sections
from kernels.mma_sync.family import MMA_SYNC
from kernels.reference import BASELINES, REFERENCE_KERNELS, reference_kernels
from kernels.registry import FAMILIES
from tilewright.artifact import TensorMap

BY_NAME = {reference.name: reference for reference in REFERENCE_KERNELS}


def archs(reference) -> list[str]:
    if reference.family.startswith("wgmma"):
        return ["sm_90"]
    older = ["sm_80", "sm_86", "sm_87", "sm_88"] if "float8" in reference.problem.dtype else []
    return [arch for arch in ARCHS if arch not in older]


def test_no_kernel_of_the_documents_is_missing() -> None:
    names = [reference.name for reference in REFERENCE_KERNELS]
    assert len(set(names)) == len(names)
    assert [reference.document for reference in REFERENCE_KERNELS] == sorted(
        reference.document for reference in REFERENCE_KERNELS
    )
    counts = {document: len(reference_kernels(document)) for document in ("000", "001", "002", "003", "004")}
    assert counts == {"000": 14, "001": 4, "002": 15, "003": 5, "004": 7}


def test_an_unknown_document_is_refused() -> None:
    with pytest.raises(ValueError, match="no document 005"):
        reference_kernels("005")


def test_reference_kernels_differ_in_their_configs() -> None:
    """Except for the one whose step is in the address arithmetic, which our kernels have simple already; its
    note says so."""
    seen: dict[object, str] = {}
    twice = []
    for reference in REFERENCE_KERNELS:
        key = (reference.config, reference.problem)
        twice += [(seen[key], reference.name)] if key in seen else []
        seen[key] = reference.name
    assert twice == [("000-mma-m16n8k16", "000-simplified-ldmatrix")]
    assert "the config of the kernel before" in BY_NAME[twice[0][1]].note


@pytest.mark.parametrize("reference", REFERENCE_KERNELS, ids=lambda reference: reference.name)
def test_a_reference_kernel_is_valid_where_it_should_be(reference) -> None:
    family = FAMILIES[reference.family]
    for arch in ARCHS:
        reason = family.why_invalid(reference.config, reference.problem, gpu(arch))
        assert (reason is None) == (arch in archs(reference)), reason


@pytest.mark.parametrize(
    ("name", "arch"), every(9, on_generations(BY_NAME, lambda name: archs(BY_NAME[name]), most=1))
)
def test_a_reference_kernel_compiles_without_spills(name: str, arch: str) -> None:
    reference = BY_NAME[name]
    artifact = build(FAMILIES[reference.family], reference.config, reference.problem, gpu(arch))
    assert artifact.resources.spill_bytes == 0
    assert artifact.plan.target == ARCHS[arch].target


# 118.4 GFLOP at the document's shape: 2 * 5376 * 5376 * 2048. The document's own percentages, from its text.
def test_the_shape_and_percentages_of_000() -> None:
    reference = BY_NAME["000-wmma-4-stage"]
    assert reference.problem.flops == 118_380_036_096
    assert reference.problem.flops / BASELINES["000"].ms / 1e9 == pytest.approx(156.726, abs=0.001)
    stated = {"000-wmma-4-stage": 65.26, "000-partial-ldmatrix": 84.51, "000-unroll-snake": 90.02}
    for name, pct in stated.items():
        assert BY_NAME[name].document_pct_cublas == pytest.approx(pct, abs=0.005)


@pytest.mark.parametrize(
    "reference", [r for r in REFERENCE_KERNELS if r.document_ms and r.document_tflops], ids=lambda r: r.name
)
def test_latency_and_throughput_of_the_document_agree(reference) -> None:
    assert reference.problem.flops / reference.document_ms / 1e9 == pytest.approx(
        reference.document_tflops, rel=0.01
    )


def test_percentages_of_003_and_004() -> None:
    # 716.823 of 728.845 is the "98 %" of 003; 004 states 19.1, 36, 87.3, 89, and 102.3 in its table beside
    # 100 in its text.
    stated = {
        "003-stmatrix": 98.35, "004-1-naive": 19.1, "004-1b-tiling": 36.0, "004-2b-load-a-once": 87.3,
        "004-3-pipeline": 89.0, "004-3b-tiling": 102.3,
    }  # fmt: skip
    for name, pct in stated.items():
        assert BY_NAME[name].document_pct_cublas == pytest.approx(pct, abs=0.1)


# MAX(SmemA + SmemB, SmemC) = MAX(8192 + 8192, 128 * 128 * 4) and MAX(4 * 8192 + 4 * 8192, 128 * 128 * 4).
@pytest.mark.parametrize("name", ["000-wmma-naive", "000-wmma-4-stage", "000-unroll-snake"])
def test_000_takes_65536_bytes_of_shared_memory(name) -> None:
    reference, device = BY_NAME[name], gpu("sm_80")
    assert FAMILIES[reference.family].plan(reference.config, reference.problem, device).dynamic_smem == 65536


def test_ctas_of_the_documents() -> None:
    """Threads of a CTA: 2 x 2 warps in 000, twice that for double threading; 16 x 16 threads in 004; one
    warpgroup in 003; one warp in 002."""
    threads = {
        "000-wmma-naive": 128, "000-double-threading-421": 256, "000-double-threading-222": 256,
        "000-crosswise": 256, "000-unroll-snake": 128, "001-permuted-epilogue": 256, "002-mma-16x8x16": 32,
        "003-stmatrix": 128, "004-1-naive": 256, "004-3b-tiling": 256,
    }  # fmt: skip
    for name, expected in threads.items():
        reference = BY_NAME[name]
        plan = FAMILIES[reference.family].plan(reference.config, reference.problem, gpu("sm_90"))
        assert plan.block[0] * plan.block[1] * plan.block[2] == expected, name


@pytest.mark.parametrize("name", ["002-mma-16x8x16", "002-mma-16x8x16-ldmatrix"])
def test_002_is_one_mma(name) -> None:
    knobs = MMA_SYNC.knob_values(BY_NAME[name].config)
    assert (knobs.warp_m, knobs.warp_n, knobs.tile_k, knobs.threads) == (16, 8, 16, 32)


# Operations in the low 9 bits of an instruction of 16 bytes; the numbers were read from nvdisasm.
LOAD_FRAGMENT, HMMA, TMA_LOAD = 0x03B, 0x03C, 0x1B4


def operations(name: str, target: str) -> list[int]:
    """The operations of a reference kernel's machine code."""
    reference = BY_NAME[name]
    artifact = build(FAMILIES[reference.family], reference.config, reference.problem, gpu(target))
    code = code_sections(artifact.binary)[f".text.{artifact.plan.entry}"]
    return [low & 0x1FF for low, _ in struct.iter_unpack("<QQ", code)]


# A warp computes 2 x 2 mma in a k step of 16. Kernel 2 loads A and B before each; then two of each serve all.
@pytest.mark.parametrize(("name", "loads"), [("004-2-permuted", 2), ("004-2b-load-a-once", 1)])
def test_fragment_loads_of_004(name: str, loads: int) -> None:
    found = operations(name, "sm_89")
    assert found.count(LOAD_FRAGMENT) == loads * found.count(HMMA) > 0


def test_003_loads_boxes_of_64_by_8() -> None:
    """128 x 64 of A and 64 x 128 of B for a stage are 16 boxes each, in the prologue and in the loop."""
    reference = BY_NAME["003-stmatrix"]
    plan = FAMILIES["wgmma"].plan(reference.config, reference.problem, gpu("sm_90"))
    assert [item.box for item in plan.args if isinstance(item, TensorMap)] == [(8, 64), (8, 64)]
    assert operations("003-stmatrix", "sm_90").count(TMA_LOAD) % (16 + 16) == 0


# "Device Results" of document 002.
RESULTS_002 = """
 0.1240  0.3159  0.5078  0.7002  0.8921  1.0840  1.2764  1.4678
 0.3159  0.9175  1.5195  2.1211  2.7227  3.3242  3.9258  4.5273
 0.5078  1.5195  2.5293  3.5410  4.5547  5.5625  6.5742  7.5859
 0.7002  2.1211  3.5410  4.9609  6.3828  7.8047  9.2266 10.6484
 0.8921  2.7227  4.5547  6.3828  8.2109 10.0469 11.8750 13.7031
 1.0840  3.3242  5.5625  7.8047 10.0469 12.2812 14.5234 16.7656
 1.2764  3.9258  6.5742  9.2266 11.8750 14.5234 17.1719 19.8281
 1.4678  4.5273  7.5859 10.6484 13.7031 16.7656 19.8281 22.8750
 1.6602  5.1289  8.5938 12.0625 15.5391 19.0000 22.4688 25.9375
 1.8516  5.7305  9.6094 13.4844 17.3594 21.2500 25.1250 29.0000
 2.0449  6.3320 10.6172 14.9062 19.2031 23.4844 27.7656 32.0625
 2.2363  6.9336 11.6328 16.3281 21.0312 25.7188 30.4219 35.1250
 2.4277  7.5352 12.6406 17.7500 22.8594 27.9688 33.0625 38.1875
 2.6211  8.1406 13.6562 19.1719 24.6875 30.2031 35.7188 41.2500
 2.8125  8.7422 14.6641 20.5938 26.5156 32.4375 38.3750 44.2812
 3.0039  9.3438 15.6719 22.0156 28.3438 34.6875 41.0312 47.3438
"""


def emulated_mma(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One m16n8k16 whose operands and result pass through the registers of 32 lanes; B is N x K."""
    held_a = [[(a_element(lane, i), a[a_element(lane, i)]) for i in range(8)] for lane in range(LANES)]
    held_b = [[(b_element(lane, i), b[b_element(lane, i)[::-1]]) for i in range(4)] for lane in range(LANES)]
    left, right = np.zeros((16, 16)), np.zeros((16, 8))
    for lane in range(LANES):
        for position, value in held_a[lane]:
            left[position] = value
        for position, value in held_b[lane]:
            right[position] = value
    products = left @ right
    d = np.zeros((16, 8), np.float16)
    for lane in range(LANES):
        for i in range(4):
            d[accumulator_element(lane, i)] = products[accumulator_element(lane, i)]
    return d


def test_the_result_matrix_of_002() -> None:
    """A and B hold 0.00, 0.01, 0.02 ... in the order they are stored."""
    count = np.arange(256) * np.float32(0.01)
    a = count.astype(np.float16).reshape(16, 16)
    b = count[:128].astype(np.float16).reshape(8, 16)
    expected = np.array(RESULTS_002.split(), float).reshape(16, 8)
    assert np.array_equal(np.round(emulated_mma(a, b).astype(float), 4), expected)
