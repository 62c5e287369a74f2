"""``torch.ops.tilewright.matmul``: ``Client.matmul`` for autograd and ``torch.compile``."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from tilewright.errors import InvalidProblem
from tilewright.matmul.arrays import Epilogue, library_of
from tilewright.matmul.matmul import HasMatmul, LocalMatmul
from tilewright.matmul.torch_arrays import any_autocast, check_bias
from tilewright.schema.problem import Activation

_SCHEMA = "(Tensor a, Tensor b, Tensor? bias=None, str activation='none', str kernels='') -> Tensor"
_source: LocalMatmul | None = None
_named: weakref.WeakValueDictionary[str, LocalMatmul] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def kernels_of(client: HasMatmul | None) -> None:
    """Make :func:`matmul` use the kernels of a client, or torch's own product for None.

    Models routed by :func:`tilewright.torch.use` keep the kernels of their client.
    """
    global _source
    _source = client.matmul if client else None


def named(kernels: LocalMatmul) -> str:
    """A name by which the operator finds kernels, because a graph holds no Python objects.

    It is valid as long as the kernels are referenced elsewhere; afterwards torch's own product runs.
    """
    name = f"kernels {next(_numbers)}"
    _named[name] = kernels
    return name


def _check(a: Any, b: Any, bias: Any) -> None:
    """Refuse what would have another shape or element type than a compiled graph expects.

    Raises:
        InvalidProblem: which rule, and what to give instead.
    """
    if min(a.dim(), b.dim()) < 2:
        raise InvalidProblem("a and b must be matrices or batches of them; use unsqueeze for a vector")
    for name, array in (("b", b), ("the bias", bias)):
        if array is not None and array.dtype != a.dtype:
            raise InvalidProblem(
                f"{name} must have the element type of a; use .to({a.dtype}), got {array.dtype}"
            )
    check_bias(a, b, bias)


def _run(a: Any, b: Any, bias: Any = None, activation: str = "none", kernels: str = "") -> Any:
    _check(a, b, bias)
    source = _named.get(kernels) if kernels else _source
    if source is not None:
        return source(a, b, None, bias, activation).contiguous()
    return library_of(a).product(a, b, None, bias, Epilogue(Activation(activation))).contiguous()


def _fake(a: Any, b: Any, bias: Any = None, activation: str = "none", kernels: str = "") -> Any:  # noqa: ARG001
    _check(a, b, bias)
    lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*lead, a.shape[-2], b.shape[-1]))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    a, b, bias, activation, ctx.kernels = inputs
    ctx.activation = Activation(activation)
    # The result of relu shows which elements it passed on; for gelu the product is computed again.
    ctx.save_for_backward(a, b, bias, output if ctx.activation is Activation.RELU else None)


def _backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
    a, b, bias, output = ctx.saved_tensors
    product = functools.partial(torch.ops.tilewright.matmul, kernels=ctx.kernels)
    if ctx.activation is Activation.RELU:
        grad = torch.ops.aten.threshold_backward(grad, output, 0)  # also right for infinities and NaN
    elif ctx.activation is Activation.GELU:
        grad = torch.ops.aten.gelu_backward(grad, product(a, b, bias), approximate="tanh")
    for_a = product(grad, b.mH).sum_to_size(a.shape) if ctx.needs_input_grad[0] else None
    for_b = _of_b(product, a, b, grad) if ctx.needs_input_grad[1] else None
    for_bias = None
    if bias is not None and ctx.needs_input_grad[2]:
        for_bias = grad.flatten(0, -2).sum(0).to(bias.dtype)
    return for_a, for_b, for_bias, None, None


def _of_b(product: Callable[..., Any], a: Any, b: Any, grad: Any) -> Any:
    if b.dim() == 2:
        return product(a.flatten(0, -2).mH, grad.flatten(0, -2))
    return product(a.mH, grad).sum_to_size(b.shape)


_operator = torch.library.custom_op("tilewright::matmul", _run, mutates_args=(), schema=_SCHEMA)
_operator.register_fake(_fake)
_operator.register_autograd(_backward, setup_context=_keep)


def _cast(device: str, *operands: Any) -> list[Any]:
    """Operands as torch's own product takes them under autocast."""
    dtype = torch.get_autocast_dtype(device)
    return [
        x.to(dtype)
        if x is not None and x.is_floating_point() and x.dtype != torch.float64 and x.device.type == device
        else x
        for x in operands
    ]


def _autocast(device: str) -> Callable[..., Any]:
    """The operator under autocast of a device. NOTE: torch.library.register_autocast knows one type only."""

    def cast(a: Any, b: Any, bias: Any = None, *others: Any) -> Any:
        operands = _cast(device, a, b, bias)
        with torch.autocast(device, enabled=False):
            return torch.ops.tilewright.matmul(*operands, *others)

    return cast


torch.library.impl("tilewright::matmul", "AutocastCPU", _autocast("cpu"))
torch.library.impl("tilewright::matmul", "AutocastCUDA", _autocast("cuda"))


class _Transformed(torch.autograd.Function):  # type: ignore[misc]
    """The operator under transforms of torch.func, for which torch's registration has no gradients."""

    setup_context = staticmethod(_keep)
    backward = staticmethod(_backward)

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return torch.ops.tilewright.matmul(*inputs)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, int]:
        given = list(zip(inputs, in_dims, strict=True))
        each = [
            torch.ops.tilewright.matmul(*(x if dim is None else x.select(dim, i) for x, dim in given))
            for i in range(info.batch_size)
        ]
        return torch.stack(each), 0


def _transformed(a: Any, b: Any, bias: Any = None, activation: str = "none", kernels: str = "") -> Any:
    device = a.device.type
    if any_autocast() and torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        a, b, bias = _cast(device, a, b, bias)
    return _Transformed.apply(a, b, bias, activation, kernels)


# NOTE: the key that the dispatcher tries first, and only under a transform.
torch.library.impl("tilewright::matmul", "FuncTorchDynamicLayerFrontMode", _transformed)


def matmul(a: Any, b: Any, bias: Any = None, activation: str = "none") -> Any:
    """``act(a @ b + bias)`` with gradients: ``(..., m, k)`` by ``(k, n)`` or ``(..., k, n)``.

    ``activation`` is ``none``, ``relu`` or ``gelu`` (the tanh approximation).
    """
    return torch.ops.tilewright.matmul(a, b, bias, activation)
