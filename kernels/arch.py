"""Facts about the architectures of NVIDIA GPUs that kernels are compiled for, each in one place."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Arch:
    """An architecture; None stands for a fact that is not known, and what follows from it is left out.

    Attributes:
        target: what NVRTC compiles for it; a target that ends in "a" runs on exactly its own version.
        sm_limits: (threads, CTAs) that an SM holds at most.
        tensor: multiply-adds of an SM in a clock on tensor cores, for 16-bit types.
        halved: whether GeForce cards reach only half of ``tensor`` with float32 accumulators.
        float32, float64: multiply-adds of an SM in a clock for these types.
        l2_bytes: bytes that the L2 delivers to an SM in a clock.
        launch_clocks: clocks of a launch that computes nothing.
        unpacks_float8: whether mma.sync of 8-bit floats is one of float16, after a conversion.
    """

    target: str
    sm_limits: tuple[int, int] | None = None
    tensor: int | None = None
    halved: bool = False
    float32: int | None = None
    float64: int | None = None
    l2_bytes: int | None = None
    launch_clocks: int | None = None
    unpacks_float8: bool = False


# The GPU tests run on sm_90; for the others kernels are compiled. Where the facts come from:
#   sm_limits        CUDA C++ Programming Guide, technical specifications per compute capability
#   tensor           NVIDIA's data sheets of A100, H100, B200 (by tcgen05; mma.sync stays below it) and, with
#                    float16 accumulators, RTX 3090, RTX 4090 and RTX 5090 (330.3 TFLOP/s of the 128 SMs of an
#                    RTX 4090 at 2.52 GHz, 165.2 with float32 accumulators)
#   float32, float64   the same data sheets; GeForce cards compute float64 at 1/64 of float32
#   l2_bytes, launch_clocks   the cost model of wgmma_ws, fitted to cycle counts on an H200
# NOTE: register estimates were found by compiling for sm_80 to sm_90. Configs of later ones may spill; the
# builder refuses those.
ARCHS = {
    "sm_80": Arch("sm_80", (2048, 32), 1024, float32=64, float64=64),
    "sm_86": Arch("sm_86", (1536, 16), 512, halved=True, float32=128, float64=2),
    "sm_87": Arch("sm_87", (1536, 16)),
    "sm_88": Arch("sm_88"),
    "sm_89": Arch("sm_89", (1536, 24), 512, halved=True, float32=128, float64=2),
    "sm_90": Arch(
        "sm_90a", (2048, 32), 2048, float32=128, float64=128, l2_bytes=64, launch_clocks=3000,
        unpacks_float8=True,
    ),
    "sm_100": Arch("sm_100", (2048, 32), 4096, float32=128, float64=64, unpacks_float8=True),
    "sm_103": Arch("sm_103", unpacks_float8=True),
    "sm_110": Arch("sm_110", unpacks_float8=True),
    "sm_120": Arch("sm_120", (1536, 24), 512, halved=True, float32=128, float64=2),
    "sm_121": Arch("sm_121"),
}  # fmt: skip


def compiled_for(arch: str) -> Arch | None:
    """The architecture whose cubins a GPU of ``arch`` runs, or None if there is none.

    That is its own or, of the same major version, the latest minor version before it.
    """
    if arch in ARCHS:
        return ARCHS[arch]
    same_major = [known for known in ARCHS if known[:-1] == arch[:-1] and known[-1] < arch[-1]]
    portable = [ARCHS[known] for known in same_major if not ARCHS[known].target.endswith("a")]
    return portable[-1] if portable else None


def unpacks_float8(arch: str) -> bool:
    """Whether mma.sync of 8-bit floats is one of float16, after a conversion, in what a GPU runs."""
    found = compiled_for(arch)
    return found is not None and found.unpacks_float8
