"""Launches artifacts; the only package that runs kernels.

``load(artifact)`` returns a :class:`Kernel`, ``kernel.bind(problem, operands)`` a :class:`CachedLaunch`.
Calling the launch enqueues the GEMM on a CUDA stream, or runs it on the host. Cubins need the NVIDIA driver,
host artifacts the C library; no compiler and no CUDA headers are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from tilewright.artifact import Artifact
from tilewright.launch.arguments import Operands
from tilewright.launch.host import HostKernel
from tilewright.lazy import LazyModule
from tilewright.schema.problem import GemmProblem

if TYPE_CHECKING:
    from tilewright.launch import cuda
else:
    cuda = LazyModule("tilewright.launch.cuda")

__all__ = ["CachedLaunch", "Kernel", "Launch", "Operands", "load"]


class Launch(Protocol):
    """A kernel with all of its arguments in place."""

    def __call__(self, stream: int = 0) -> None:
        """Run once on a CUDA stream handle (ignored on the host).

        Raises:
            LaunchError: the driver refused.
        """


class CachedLaunch(Launch, Protocol):
    """A launch for repeated use: moving it to other operands costs far less than binding again.

    NOTE: not for two threads at once. A launch with a workspace serves one stream and refuses another; graphs
    that captured it must not be replayed at once.
    """

    @property
    def move(self) -> Callable[..., None]:
        """``move(a, b, d, c=0, bias=0)`` takes other addresses of the same shapes and strides.

        It raises :class:`PreconditionFailed` if an address is less aligned than the kernel needs.
        """


class Kernel(Protocol):
    """A loaded artifact.

    Attributes:
        held: a CUDA graph may hold it, so that it must stay loaded.
    """

    artifact: Artifact
    held: bool

    def bind(self, problem: GemmProblem, operands: Operands) -> CachedLaunch:
        """Prepare a launch.

        The first launch of a kernel with a CTA order probes the GPU, which takes some milliseconds, or 0.1 s
        if the GPU is busy.

        The workspace must be zero as far as the plan says so. Each launch leaves it so; after one that failed
        it must be zeroed again.

        Raises:
            PreconditionFailed: problem, addresses or strides break the plan's preconditions.
            LaunchError: the context is broken.
        """

    def close(self) -> None:
        """Unload the kernel; later launches are an error."""


def load(artifact: Artifact, overlap: bool = False) -> Kernel:
    """Load a verified artifact onto the current device.

    Args:
        overlap: whether launches may start while the kernel before them on the stream ends, where the plan
            allows it (programmatic dependent launch). After another such launch that saves 0.2 to 1.4 us on
            an H100; after a kernel that does not release them early it costs 0.2 us
            (benchmarks/lab/2026-11-25-overlap.md).

    Raises:
        DeviceUnavailable: there is no driver or device for it.
        LaunchError: the driver refused the binary.
    """
    return cuda.CudaKernel(artifact, overlap) if artifact.plan.format == "cubin" else HostKernel(artifact)
