"""Launch artifacts: the one place of the project that runs kernels.

``load(artifact)`` gives a :class:`Kernel`; ``kernel.bind(problem, operands)`` a :class:`Launch`;
calling that enqueues the GEMM (on a CUDA stream) or runs it (on the host). Needs a driver for
cubins, nothing but the C library for host artifacts; no compiler, no CUDA headers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tilewright.artifact import Artifact
from tilewright.launch.arguments import Operands
from tilewright.problem import GemmProblem

__all__ = ["BoundLaunch", "Kernel", "Launch", "Operands", "load"]


class Launch(Protocol):
    """A kernel with all of its arguments in place."""

    def __call__(self, stream: int = 0) -> None:
        """Run once on a CUDA stream handle (ignored on the host).

        Raises:
            LaunchError: the driver refused.
        """


class BoundLaunch(Launch, Protocol):
    """What :meth:`Kernel.bind` gives: its operands may move, which costs far less than binding again.

    NOTE: not for two threads at once.
    """

    @property
    def move(self) -> Callable[..., None]:
        """``move(a, b, d, c=0, bias=0)``: other addresses of the same shapes and strides; raises
        :class:`PreconditionFailed` where one is less aligned than the kernel needs."""


class Kernel(Protocol):
    """A loaded artifact."""

    artifact: Artifact

    def bind(self, problem: GemmProblem, operands: Operands) -> BoundLaunch:
        """Fix the arguments. Of some kernels the first call asks a GPU where it places blocks: some
        milliseconds, 0.1 s where it is busy.

        Raises:
            PreconditionFailed: problem, addresses or strides break the plan's preconditions.
            LaunchError: the context is broken.
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
