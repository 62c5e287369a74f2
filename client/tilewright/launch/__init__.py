"""Launch artifacts: the one place of the project that runs kernels.

``load(artifact)`` gives a :class:`Kernel`; ``kernel.bind(problem, operands)`` a :class:`Launch`;
calling that enqueues the GEMM (on a CUDA stream) or runs it (on the host). Needs a driver for
cubins, nothing but the C library for host artifacts; no compiler, no CUDA headers.
"""

from __future__ import annotations

from typing import Protocol

from tilewright.artifact import Artifact
from tilewright.launch.arguments import Operands
from tilewright.problem import GemmProblem

__all__ = ["Kernel", "Launch", "Operands", "load"]


class Launch(Protocol):
    """A kernel with all of its arguments in place."""

    def __call__(self, stream: int = 0) -> None:
        """Run once on a CUDA stream handle (ignored on the host).

        Raises:
            LaunchError: the driver refused.
        """


class Kernel(Protocol):
    """A loaded artifact."""

    artifact: Artifact

    def bind(self, problem: GemmProblem, operands: Operands) -> Launch:
        """Fix the arguments.

        Raises:
            PreconditionFailed: problem, addresses or strides break the plan's preconditions.
        """

    def close(self) -> None:
        """Unload; later launches are an error."""


def load(artifact: Artifact) -> Kernel:
    """Load a verified artifact onto the current device.

    Raises:
        DeviceUnavailable: there is no driver or device for it.
        LaunchError: the driver refused the binary.
    """
    if artifact.plan.format == "cubin":
        from tilewright.launch.cuda import CudaKernel

        return CudaKernel(artifact)
    from tilewright.launch.host import HostKernel

    return HostKernel(artifact)
