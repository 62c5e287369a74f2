"""Configs, operands and float64 references for the tests of the CPU device."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from kernels.compiler.build import build
from kernels.host.config import VECTOR_UNITS
from kernels.host.family import HOST
from tilewright.artifact import Artifact
from tilewright.launch.arguments import Operands
from tilewright.launch.host import HostKernel, host_arch
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import Activation, GemmProblem

DEVICE = DeviceSpec(
    kind="host", arch=host_arch(), name="this CPU", sm_count=2, memory_bytes=1 << 34, l2_bytes=16 << 20
)
LARGE = GemmProblem(65536, 65536, 65536, "float32")
_REGISTERS = VECTOR_UNITS[DEVICE.arch].registers
_KNOBS = ["threads=1", "mr=4,6", f"nv={_REGISTERS // 8}", "kc=256", "mc=64,128", "nc=128"]
_KNOBS += ["swizzle=1", "snake=0", "stream=a,b", "prefetch=0"]
# Arguments of ``tilewright record host``: two register tiles, two cache tiles, two operands that stream.
EIGHT_CONFIGS = ["--m=96", "--n=96", "--k=96", "--dtype=float32", "--layout=nn"]
EIGHT_CONFIGS += [f"--knob={values}" for values in _KNOBS]


def config_of(**changes: int | str) -> Config:
    """A config with tiny cache tiles, so that small shapes meet every edge."""
    mr, nv = (12, 2) if _REGISTERS == 32 else (6, 2)
    knobs: dict[str, int | str] = {
        "threads": 1, "mr": mr, "nv": nv, "kc": 16, "mc": 16, "nc": 32, "swizzle": 2, "snake": 1,
        "stream": "b", "unroll": 2, "prefetch": 4,
    }  # fmt: skip
    return Config.of("host", knobs | changes)


@functools.cache
def artifact_of(config: Config, problem: GemmProblem, device: DeviceSpec = DEVICE) -> Artifact:
    """Compiled once for all extents: ``problem`` should be the same for all that share it."""
    return build(HOST, config, problem, device)


@dataclasses.dataclass(slots=True)
class Case:
    """Padded operands of one GEMM; what lies outside of the matrices is NaN."""

    problem: GemmProblem
    pad: int = 0
    alpha: float = 1.0
    beta: float = 0.0
    a: Any = None
    b: Any = None
    c: Any = None
    d: Any = None
    bias: Any = None

    def __post_init__(self) -> None:
        problem, random = self.problem, np.random.default_rng(self.problem.m * 1009 + self.problem.k)
        self.a = self._padded(problem.a_shape, random)
        self.b = self._padded(problem.b_shape, random)
        self.c = self._padded((problem.m, problem.n), random)
        self.d = np.full_like(self.c, np.nan)
        self.bias = random.standard_normal(problem.n).astype(problem.dtype)

    def run(self, config: Config, device: DeviceSpec = DEVICE) -> None:
        """Launch once, with a workspace of exactly the plan's size."""
        signature = dataclasses.replace(self.problem, m=64, n=64, k=64, batch=1)
        kernel = HostKernel(artifact_of(config, signature, device))
        workspace = np.full(kernel.artifact.plan.workspace_bytes(self.problem) + 64, 0xA5, np.uint8)
        try:
            kernel.bind(self.problem, self._operands(workspace))()
        finally:
            kernel.close()
        assert (workspace[-64:] == 0xA5).all(), "wrote past the end of the workspace"

    def check(self) -> None:
        """Asserts that D is within the rounding error of its dot products, with nothing written beside it.

        A sum of k products and three more terms in any order errs by at most (k + 3) eps times the sum of
        magnitudes; the activations have slopes below 1.13 and add a few eps of their own.
        """
        exact, magnitude = self._reference()
        got = self.d[:, :, : self.problem.n].astype(np.float64)
        eps = float(np.finfo(self.d.dtype).eps)
        error = np.abs(got - exact)
        assert (error <= 1.2 * (self.problem.k + 8) * eps * (magnitude + 1e-3)).all(), np.nanmax(error)
        assert np.isnan(self.d[:, :, self.problem.n :]).all(), "wrote beside D"

    def _padded(self, shape: tuple[int, int], random: np.random.Generator) -> Any:
        whole = np.full((self.problem.batch, shape[0], shape[1] + self.pad), np.nan, self.problem.dtype)
        whole[:, :, : shape[1]] = random.standard_normal((self.problem.batch, *shape))
        return whole

    def _operands(self, workspace: Any) -> Operands:
        strides = {name: getattr(self, name[-1]).shape[2] for name in ("lda", "ldb", "ldc", "ldd")}
        return Operands(
            a=self.a.ctypes.data,
            b=self.b.ctypes.data,
            c=self.c.ctypes.data if self.problem.has_c else 0,
            d=self.d.ctypes.data,
            bias=self.bias.ctypes.data if self.problem.has_bias else 0,
            workspace=workspace.ctypes.data,
            alpha=self.alpha,
            beta=self.beta,
            **(strides if self.pad else {}),
        )

    def _reference(self) -> tuple[Any, Any]:
        problem = self.problem
        a = self.a[:, :, : problem.a_shape[1]].astype(np.float64)
        b = self.b[:, :, : problem.b_shape[1]].astype(np.float64)
        a = a.transpose(0, 2, 1) if problem.layout.a_transposed else a
        b = b.transpose(0, 2, 1) if problem.layout.b_transposed else b
        total, magnitude = self.alpha * (a @ b), abs(self.alpha) * (np.abs(a) @ np.abs(b))
        if problem.has_c:
            c = self.c[:, :, : problem.n].astype(np.float64)
            total, magnitude = total + self.beta * c, magnitude + np.abs(self.beta * c)
        if problem.has_bias:
            total, magnitude = total + self.bias, magnitude + np.abs(self.bias)
        return activate(total, problem.activation), magnitude


def activate(x: Any, activation: Activation) -> Any:
    """The activation in float64."""
    if activation is Activation.RELU:
        return np.maximum(x, 0)
    if activation is Activation.GELU:
        return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return x
