"""Reference kernels: each kernel of the documents 000 to 004 as a config of a family, on the document's
shape.

The documents measured on an A100 (000), an H200 (003) and an RTX 4090 (004). If a latency and a TFLOP/s of a
document disagree, the TFLOP/s holds; percentages follow from the TFLOP/s.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from kernels.base.family import Family
from kernels.mma_sync.family import MMA_SYNC
from kernels.wgmma.family import WGMMA
from kernels.wgmma_ws.family import WGMMA_WS
from kernels.wmma.family import WMMA
from tilewright.schema.codec import KnobValue
from tilewright.schema.config import Config
from tilewright.schema.problem import DType, GemmProblem, Layout


@dataclasses.dataclass(frozen=True, slots=True)
class Baseline:
    """The result of cuBLAS in a document.

    Attributes:
        device: the GPU of the document.
        ms, tflops: milliseconds and TFLOP/s as written there.
    """

    device: str
    ms: float
    tflops: float


@dataclasses.dataclass(frozen=True, slots=True)
class ReferenceKernel:
    """One kernel of a document.

    Attributes:
        name: unique, starts with the document's number.
        config, problem: the config, and the document's shape (4096^3 if it states none).
        doc: what this kernel adds to the previous one, in one line.
        slower: why it may be slower here than in the document, in one line.
        document_ms, document_tflops: the document's figures; None if it gives none.
        note: how this kernel differs from the document's, and the effect.
        stated_pct: per cent of cuBLAS as the document states it, if its figures give less.
    """

    name: str
    config: Config
    problem: GemmProblem
    doc: str
    slower: str
    document_ms: float | None = None
    document_tflops: float | None = None
    note: str = ""
    stated_pct: float | None = None

    @property
    def document(self) -> str:
        """Number of the document."""
        return self.name[:3]

    @property
    def family(self) -> str:
        """The kernel family."""
        return self.config.family

    @property
    def document_pct_cublas(self) -> float | None:
        """Per cent of the document's cuBLAS; None if the document lacks either figure."""
        baseline = BASELINES.get(self.document)
        if self.stated_pct is not None:
            return self.stated_pct
        if baseline is None or self.document_tflops is None:
            return None
        return 100 * self.document_tflops / baseline.tflops


DOCUMENTS = ("000", "001", "002", "003", "004")
BASELINES = {
    "000": Baseline("A100 PCIe 80 GB", 0.755333, 156.726),
    "003": Baseline("H200", 0.188571, 728.845),
    "004": Baseline("RTX 4090", 0.89, 154.4),
}

_A100 = "cuBLAS of Hopper computes with wgmma, out of reach for mma.sync; the A100's used mma.sync"
_ADA = "cuBLAS of Hopper computes with wgmma, out of reach for mma.sync; the RTX 4090's used mma.sync"
_H200 = (
    "measured under sustained load with inputs rotated past the L2, where the power limit lowers the clock"
)
_TINY = "a launch of one warp: its latency counts, not its arithmetic"

_SIMPLE = (
    "the config of the kernel before, run again: the document computes rows and columns outside of the loops "
    "here, ours does in every kernel, so the two differ by the noise of the table alone"
)
_FROM_SHARED = (
    "fragments come from shared memory, the document's straight from global memory: the same elements in "
    "the same lanes, and a launch of one warp is latency whichever way it loads; m8n8k4, which the document "
    "lists among the shapes, is Volta's and has no kernel"
)
_BASE = "D goes through permuted shared memory here too; the operands lie as in the document's base"
_UNROLLED = "the compiler unrolls loops of constant length without being told, in the kernels before too"
_RELEASED = (
    "all threads release a stage once its wgmma have ended; in the document they do when they have issued "
    "them, and the first warp alone awaits their end"
)
_B_ONCE = "each tile of B is loaded once too, in the document for each row of mma tiles"
_NEXT_STEP = "a step that the document leaves to do, by family wgmma_ws; {}"
_TABLE = (
    "the document's table says 840 us and 102.3 % of cuBLAS, its text 890 us and 100 %: held against 102.3 %"
)

_CUBE = GemmProblem(4096, 4096, 4096)
_000 = GemmProblem(5376, 5376, 2048)
_001 = dataclasses.replace(_CUBE, acc_dtype=DType.FLOAT16)
_002 = GemmProblem(16, 8, 16)
_003 = dataclasses.replace(_CUBE, layout=Layout.NN, acc_dtype=DType.FLOAT16)
_004 = dataclasses.replace(_CUBE, out_dtype=DType.FLOAT32)
_004_NN = dataclasses.replace(_004, layout=Layout.NN)

# 128 x 128 x 32 with 2 x 2 warps of 64 x 64 and four stages: what the kernels of 000 share.
_WMMA: dict[str, KnobValue] = {
    "tile_m": 128, "tile_n": 128, "tile_k": 32, "warps_m": 2, "warps_n": 2, "stages": 4,
    "smem_layout": "blocked", "snake": 0,
}  # fmt: skip
_MMA = _WMMA | {"fragment_load": "direct", "double_buffer": 0}
_CROSSWISE = _MMA | {"smem_layout": "xor"}
_PERMUTED = _MMA | {
    "tile_m": 256, "warps_m": 4, "stages": 1, "smem_layout": "permuted", "fragment_load": "ldmatrix_x2",
    "snake": 1, "epilogue": "direct",
}  # fmt: skip
_ONE_MMA = _MMA | {
    "tile_m": 16, "tile_n": 8, "tile_k": 16, "warps_m": 1, "warps_n": 1, "stages": 1, "epilogue": "direct",
    "smem_layout": "plain",
}  # fmt: skip
_TYPE = _CROSSWISE | {"warps_m": 4, "fragment_load": "ldmatrix", "snake": 1, "epilogue": "direct"}
_WGMMA: dict[str, KnobValue] = {
    "tile_m": 128, "tile_n": 128, "tile_k": 64, "stages": 3, "warpgroups": 1,
    "epilogue": "direct", "raster": "n", "box_lines": 8, "arrivals": "threads",
}  # fmt: skip
# 16 x 16 threads, 2 x 4 warps, registers straight to D: what the kernels of 004 share.
_ADA_MMA = _MMA | {"warps_m": 2, "warps_n": 4, "stages": 1, "epilogue": "direct"}
_ADA_NAIVE = _ADA_MMA | {
    "tile_m": 32, "tile_n": 32, "tile_k": 16, "copy_bytes": 2, "smem_layout": "plain",
}  # fmt: skip
_ADA_NAIVE_2X = _ADA_NAIVE | {"tile_m": 64, "tile_n": 64}
_ADA_XOR = _ADA_MMA | {"tile_m": 64, "tile_n": 64, "smem_layout": "xor", "fragment_load": "ldmatrix_x2"}
_WGMMA_WS: dict[str, KnobValue] = {
    "tile_m": 128, "tile_n": 256, "stages": 4, "schedule": "cooperative", "consumers_m": 2, "snake": 1,
}  # fmt: skip
_PINGPONG = _WGMMA_WS | {"tile_n": 128, "stages": 6, "schedule": "pingpong", "consumers_m": 1}


def _config(family: Family[Any], knobs: dict[str, KnobValue]) -> Config:
    """A config of the family, with its base values for all other knobs."""
    return family.config(family.knobs_type(**knobs))


def _mma(base: dict[str, KnobValue], **changes: KnobValue) -> Config:
    return _config(MMA_SYNC, base | changes)


def _of_type(name: str, dtype: DType, tile_k: int, **changes: KnobValue) -> ReferenceKernel:
    """One row of the table of types of 002, in tiles of 64 bytes of k."""
    config = _mma(_TYPE, tile_k=tile_k, **changes)
    acc_dtype = DType.FLOAT16 if config["accumulate"] == "f16" else None
    problem = dataclasses.replace(_CUBE, dtype=dtype, out_dtype=None, acc_dtype=acc_dtype)
    return ReferenceKernel(
        f"002-{name}", config, problem, f"type table: {name.replace('-', ' accumulated in ')}", _A100
    )


def _wmma(**changes: KnobValue) -> Config:
    return _config(WMMA, _WMMA | changes)


def _wgmma(**changes: KnobValue) -> Config:
    return _config(WGMMA, _WGMMA | changes)


REFERENCE_KERNELS: tuple[ReferenceKernel, ...] = (
    ReferenceKernel(
        "000-wmma-naive", _wmma(stages=1, copy_bytes=2), _000,
        "WMMA 16x16x16, one element a thread and load, no overlap", _A100, 4.46636, 26.5048),
    ReferenceKernel(
        "000-wmma-4-stage", _wmma(), _000,
        "cp.async of 16 bytes into a ring of four stages", _A100, 1.15745, 102.277),
    ReferenceKernel(
        "000-mma-m16n8k8", _mma(_MMA, mma_k=8), _000,
        "mma.sync m16n8k8 with direct fragment loads instead of WMMA", _A100, 1.33858, 88.4372),
    ReferenceKernel(
        "000-mma-ldmatrix", _mma(_MMA, mma_k=8, fragment_load="ldmatrix"), _000,
        "fragments by ldmatrix; the blocked layout gives it bank conflicts", _A100, 1.48608, 79.6593),
    ReferenceKernel(
        "000-mma-m16n8k16", _mma(_MMA, fragment_load="ldmatrix"), _000,
        "m16n8k16: half as many instructions", _A100, 1.47957, 80.0528),
    ReferenceKernel(
        "000-simplified-ldmatrix", _mma(_MMA, fragment_load="ldmatrix"), _000,
        "simplified addresses", _A100, 1.34029, 88.3243, _SIMPLE),
    ReferenceKernel(
        "000-simplified", _mma(_MMA), _000,
        "simplified addresses without ldmatrix", _A100, 1.21901, 97.1117),
    ReferenceKernel(
        "000-double-threading-421", _mma(_MMA, warps_m=4), _000,
        "twice the warps, 4 x 2 x 1 in M x N x K; no significant change, says the document", _A100),
    ReferenceKernel(
        "000-double-threading-222", _mma(_MMA, warps_k=2), _000,
        "twice the warps, 2 x 2 x 2: slices of k, added up in shared memory (rfactor)", _A100),
    ReferenceKernel(
        "000-crosswise", _mma(_CROSSWISE, warps_n=4), _000,
        "XOR layout with double threading: no bank conflicts any more", _A100, 1.06895, 110.744),
    ReferenceKernel(
        "000-crosswise-ldmatrix", _mma(_CROSSWISE, warps_n=4, fragment_load="ldmatrix"), _000,
        "the same with ldmatrix", _A100, None, 106.942),
    ReferenceKernel(
        "000-fragment-double-buffer", _mma(_CROSSWISE, fragment_load="ldmatrix", double_buffer=1), _000,
        "2 x 2 warps, fragments of the next k step loaded ahead; no change, says the document", _A100),
    ReferenceKernel(
        "000-partial-ldmatrix", _mma(_CROSSWISE, fragment_load="mixed", double_buffer=1), _000,
        "A by direct loads and B by ldmatrix, so that both kinds overlap", _A100, None, 132.451),
    ReferenceKernel(
        "000-unroll-snake", _mma(_CROSSWISE, fragment_load="mixed", snake=1, copy_step=1), _000,
        "copies between the k halves, mma tiles in serpentine order: the document's final kernel",
        _A100, 0.83905, 141.088, _UNROLLED),
    ReferenceKernel(
        "001-base", _mma(_PERMUTED, accumulate="f16", epilogue="smem", smem_layout="plain"), _001,
        "plain rows in shared memory: ldmatrix with bank conflicts; the document's base", _A100, note=_BASE),
    ReferenceKernel(
        "001-permuted", _mma(_PERMUTED), _CUBE,
        "rotated 16-byte chunks in shared memory: ldmatrix without conflicts", _A100),
    ReferenceKernel(
        "001-f16-accumulate", _mma(_PERMUTED, accumulate="f16"), _001,
        "f16 accumulators: half the registers", _A100),
    ReferenceKernel(
        "001-permuted-epilogue", _mma(_PERMUTED, accumulate="f16", epilogue="smem"), _001,
        "D through permuted shared memory to 16-byte stores: the document's kernel", _A100),
    ReferenceKernel(
        "002-mma-16x8x16", _mma(_ONE_MMA), _002,
        "one m16n8k16 with the fragments loaded by hand", _TINY, note=_FROM_SHARED),
    ReferenceKernel(
        "002-mma-16x8x16-ldmatrix", _mma(_ONE_MMA, fragment_load="ldmatrix"), _002,
        "the same with ldmatrix", _TINY),
    _of_type("u8-s32", DType.UINT8, 64, accumulate="s32"),
    _of_type("s8-s32", DType.INT8, 64, accumulate="s32"),
    _of_type("f16-f16", DType.FLOAT16, 32, accumulate="f16"),
    _of_type("f16-f32", DType.FLOAT16, 32),
    _of_type("bf16-f32", DType.BFLOAT16, 32),
    _of_type("tf32-f32", DType.TFLOAT32, 16),
    _of_type("e4m3-f32", DType.FLOAT8_E4M3FN, 64, tile_n=64),
    _of_type("e5m2-f32", DType.FLOAT8_E5M2, 64, tile_n=64),
    _of_type("f64-f64", DType.FLOAT64, 8, accumulate="f64", fragment_load="direct"),
    _of_type("u4-s32", DType.UINT4, 128, accumulate="s32"),
    _of_type("s4-s32", DType.INT4, 128, accumulate="s32"),
    _of_type("b1.and-s32", DType.UINT1, 512, accumulate="s32"),
    _of_type("b1.xor-s32", DType.SIGN1, 512, accumulate="s32"),
    ReferenceKernel(
        "003-tma-wgmma", _wgmma(), _003,
        "TMA into three stages, wgmma m64n128k16 by one warpgroup, f16 accumulators", _H200, note=_RELEASED),
    ReferenceKernel(
        "003-block-swizzle", _wgmma(swizzle_size=8), _003,
        "neighbouring CTAs share columns of B in the L2", _H200, note=_RELEASED),
    ReferenceKernel(
        "003-stmatrix", _wgmma(swizzle_size=8, epilogue="stmatrix"), _003,
        "D by stmatrix through swizzled shared memory: the document's kernel", _H200, 0.191733, 716.823,
        _RELEASED),
    ReferenceKernel(
        "003-warp-specialised", _config(WGMMA_WS, _WGMMA_WS), _003,
        "a warp that loads beside two warpgroups that multiply one tile", _H200,
        note=_NEXT_STEP.format("tile 128 x 256")),
    ReferenceKernel(
        "003-persistent-pingpong", _config(WGMMA_WS, _PINGPONG), _003,
        "persistent CTAs, of which one warpgroup multiplies while the other stores", _H200,
        note=_NEXT_STEP.format("tile 128 x 128")),
    ReferenceKernel(
        "004-1-naive", _mma(_ADA_NAIVE), _004_NN,
        "kernel 1: one m16n8k16 a warp and k tile, single-element loads", _ADA, 4.67, 29.4),
    ReferenceKernel(
        "004-1b-tiling", _mma(_ADA_NAIVE_2X), _004_NN,
        "kernel 1b: 2 x 2 mma tiles a warp", _ADA, 2.47, 55.6),
    ReferenceKernel(
        "004-1b-outside", _mma(_ADA_NAIVE_2X, accumulate="f32_outside"), _004_NN,
        "kernel 1b adding up outside of the mma: about 50 us more in the document, without its bias", _ADA),
    ReferenceKernel(
        "004-2-permuted", _mma(_ADA_XOR, fragment_load="ldmatrix_reload"), _004,
        "kernel 2: 16-byte loads, XOR layout, ldmatrix of both operands before every mma",
        _ADA, 1.06, 129.7),
    ReferenceKernel(
        "004-2b-load-a-once", _mma(_ADA_XOR), _004,
        "kernel 2b: each tile of A loaded once", _ADA, 1.03, 134.7, _B_ONCE),
    ReferenceKernel(
        "004-3-pipeline", _mma(_ADA_XOR, stages=3), _004,
        "kernel 3: cp.async into three stages", _ADA, 1.0, 137.4),
    ReferenceKernel(
        "004-3b-tiling", _mma(_ADA_XOR, stages=3, tile_m=128, tile_n=128), _004,
        "kernel 3b: 4 x 4 mma tiles a warp", _ADA, 0.89, 154.4, _TABLE, 102.3),
)  # fmt: skip


def reference_kernels(document: str | None = None) -> tuple[ReferenceKernel, ...]:
    """The kernels of one document, or all, in the documents' order.

    Raises:
        ValueError: there is no such document.
    """
    if document is not None and document not in DOCUMENTS:
        raise ValueError(f"no document {document}; there are {', '.join(DOCUMENTS)}")
    return tuple(reference for reference in REFERENCE_KERNELS if document in (None, reference.document))
