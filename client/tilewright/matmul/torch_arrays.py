"""torch tensors, on the CPU and on CUDA devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any

import torch

from tilewright.errors import InvalidProblem
from tilewright.matmul.arrays import Epilogue, Strided, check_own_memory, element_type, factors
from tilewright.schema.problem import Activation, DType, too_large

# NOTE: subclasses (fake, functional, distributed tensors) have no memory of their own to launch on.
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_HALF = (torch.float16, torch.bfloat16)
_MOST = torch.finfo(torch.float32).max
_transformed: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)
_forward_ad: Any = torch.autograd.forward_ad
_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
_tracing: Callable[[], bool] = getattr(torch._C, "_is_tracing", torch.jit.is_tracing)
_functions: Callable[[], int] = getattr(torch._C, "_len_torch_function_stack", lambda: 0)
_before_dispatch: Callable[[], int] = getattr(torch._ops, "_len_torch_dispatch_stack_pre_dispatch", lambda: 0)
# NOTE: the public is_autocast_enabled checks one kind of device only, and takes longer.
any_autocast: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", torch.is_autocast_enabled)


class TorchArrays:
    """Implements :class:`tilewright.matmul.arrays.ArrayLibrary` for ``torch.Tensor``."""

    def __init__(self) -> None:
        self.address: Callable[[Any], int] = torch.Tensor.data_ptr
        self.empty: Callable[[Any, tuple[int, ...]], Any] = torch.Tensor.new_empty
        self.stream: Callable[[int], int] = _raw_stream()
        # NOTE: so that torch refuses gradients that need what ``out`` held before.
        self.written: Callable[[Any], object] = torch.autograd.graph.increment_version
        self._several = torch.cuda.device_count() > 1
        self._grad_enabled = torch.is_grad_enabled
        self.linear: Callable[[Any, Any, Any], Any] = torch.nn.functional.linear
        self._allow_tf32: Callable[[], Any] = _allow_tf32()
        self._float32 = torch.float32

    def key(self, a: Any, b: Any, out: Any, bias: Any) -> Hashable | None:
        if type(a) not in _PLAIN or type(b) not in _PLAIN or any_autocast():
            return None
        # NOTE: within vmap and the like tensors have no memory of their own, dual ones have a derivative, and
        # views of negated numbers lie in memory with the other sign.
        if _transformed() or _forward_ad._current_level >= 0 or a.is_neg() or b.is_neg():
            return None
        if _modes() or _tracing() or (_functions() and _before_dispatch()):  # watched(), without a call
            return None
        if (a.requires_grad or b.requires_grad) and self._grad_enabled():
            return None
        dtype = a.dtype
        try:
            # NOTE: devices, not indices: a CPU tensor and a meta tensor have the same index.
            key = (a.shape, a.stride(), dtype, a.device, b.shape, b.stride(), b.dtype, b.device)
        except RuntimeError:  # sparse and other layouts have no strides
            return None
        if (self._several or dtype is self._float32) and a.is_cuda:
            current = torch.cuda.current_device() if self._several else 0
            wide = (*key, current, dtype is self._float32 and self._allow_tf32())
            return wide if out is None and bias is None else self._longer(wide, out, bias)
        return key if out is None and bias is None else self._longer(key, out, bias)

    def _longer(self, key: tuple[Any, ...], out: Any, bias: Any) -> Hashable | None:
        for array in (out, bias):
            if array is None:
                continue
            if type(array) not in _PLAIN or (array.requires_grad and self._grad_enabled()) or array.is_neg():
                return None
        if out is not None and out.is_inference() and not torch.is_inference_mode_enabled():
            return None  # torch refuses to write to it
        return (*key, _facts(out), _facts(bias))

    def describe(self, array: Any) -> Strided:
        if type(array) not in _PLAIN or array.layout is not torch.strided:
            raise InvalidProblem(
                f"kernels need dense tensors; convert the {type(array).__name__} of {array.layout}"
            )
        if array.device.type not in ("cpu", "cuda"):
            raise InvalidProblem(
                f"tensors must be on the CPU or a CUDA device for kernels, got {array.device}"
            )
        dtype = element_type(str(array.dtype).removeprefix("torch."))
        return Strided(tuple(array.shape), array.stride(), dtype, array.get_device())

    def operand_type(self, dtype: DType) -> DType:
        return DType.TFLOAT32 if dtype is DType.FLOAT32 and self._allow_tf32() else dtype

    def zero_bytes(self, like: Any, size: int) -> Any:
        return like.new_zeros(size, dtype=torch.uint8)

    def product(self, a: Any, b: Any, out: Any, bias: Any, epilogue: Epilogue) -> Any:
        if epilogue.plain and bias is None and out is None:
            return torch.matmul(a, b)
        if not isinstance(b, torch.Tensor):
            raise InvalidProblem(f"b must be a tensor as a is; use torch.tensor, got {type(b)}")
        strided = isinstance(out, torch.Tensor) and out.layout is torch.strided and not out.is_nested
        if strided and not out.is_contiguous():
            check_own_memory(out.shape, out.stride())
        if epilogue.plain and bias is None:
            _check_out(out, _product_shape(a, b), a.dtype)  # torch itself would resize it
            return torch.matmul(a, b, out=out)
        check_bias(a, b, bias)
        d = _product(*factors(a, b, epilogue), out, bias, epilogue)
        if out is None:
            return d
        _check_out(out, d.shape, d.dtype)
        return out.copy_(d)


def _product(a: Any, b: Any, out: Any, bias: Any, epilogue: Epilogue) -> Any:
    """D as a new tensor; 16-bit types are rounded once, before the activation or after it."""
    alpha, beta = epilogue.alpha, epilogue.beta
    if bias is None and alpha == 1.0 and beta == 0.0:
        return activated(torch.matmul(a, b), epilogue.activation)
    # NOTE: with more axes, linear may add the bias to a product that is rounded already.
    once = a.dim() == 2 or a.dtype not in _HALF or not dense(a)
    if once and bias is not None and alpha == 1.0 and beta == 0.0 and b.dim() == 2:
        return activated(torch.nn.functional.linear(a, b.t(), bias), epilogue.activation)
    alike = a.dtype is b.dtype and dense(a) and dense(b)
    d = _addmm(a, b, out, bias, epilogue) if alike else None
    if d is not None:
        return activated(d, epilogue.activation)
    half = alike and a.dtype in _HALF and not any_autocast()
    d = torch.matmul(a.float(), b.float()) if half else torch.matmul(a, b)
    dtype = a.dtype if half else d.dtype
    d = d if alpha == 1.0 else d * _factor("alpha", alpha, dtype)
    if beta != 0.0:
        _check_out(out, d.shape, dtype)
        d = d + _factor("beta", beta, dtype) * out
        dtype = torch.promote_types(dtype, out.dtype)
    if bias is not None:
        d, dtype = d + bias, torch.promote_types(dtype, bias.dtype)
    return activated(d, epilogue.activation).to(dtype)


def _addmm(a: Any, b: Any, out: Any, bias: Any, epilogue: Epilogue) -> Any | None:
    """D before its activation by one function of torch; None if no function computes it."""
    reads_c, flat = epilogue.beta != 0.0, b.dim() == 2
    if not a.is_floating_point() or min(a.dim(), b.dim()) < 2 or not (flat or a.shape[:-2] == b.shape[:-2]):
        return None
    if reads_c and (bias is not None or any_autocast()):  # which would round C
        return None
    shape = (*a.shape[:-1], b.shape[-1])
    if reads_c:
        _check_out(out, shape, a.dtype)
    alpha, beta = _factor("alpha", epilogue.alpha, a.dtype), _factor("beta", epilogue.beta, a.dtype)
    c = out if reads_c else bias
    if c is None:
        c = a.new_empty(())  # not read, as beta is 0
    elif c.dtype is not a.dtype or not dense(c):
        return None
    elif not reads_c:
        beta = 1.0
    if a.dim() == 2 and flat:
        return torch.addmm(c, a, b, alpha=alpha, beta=beta)
    last = -2 if flat else -3
    a, c = a.flatten(0, last), c.flatten(0, last) if reads_c else c
    if flat:
        return torch.addmm(c, a, b, alpha=alpha, beta=beta).reshape(shape)
    return torch.baddbmm(c, a, b.flatten(0, last), alpha=alpha, beta=beta).reshape(shape)


def dense(array: Any) -> bool:
    """Whether an array is a tensor of no subclass with strides."""
    return type(array) in _PLAIN and array.layout is torch.strided and not array.is_nested


def check_bias(a: Any, b: Any, bias: Any) -> None:
    """Refuse a bias that is no vector of n elements.

    Raises:
        InvalidProblem: what it must be.
    """
    columns = b.shape[-1:] if b.dim() > 1 else a.shape[-2:-1]
    if bias is not None and not isinstance(bias, torch.Tensor):
        raise InvalidProblem(f"the bias must be a tensor; use torch.tensor, got {type(bias)}")
    if bias is not None and bias.shape != columns:
        raise InvalidProblem(f"the bias must have the shape {tuple(columns)}, got {tuple(bias.shape)}")


def _product_shape(a: Any, b: Any) -> tuple[int, ...]:
    """The shape of the product of operands that fit together."""
    left, right = tuple(a.shape), tuple(b.shape)  # NOTE: slices of a torch.Size take long
    lead = left[:-2]
    if right[:-2] not in ((), lead):
        lead = torch.broadcast_shapes(lead, right[:-2])
    return *lead, *left[:-1][-1:], *right[1:][-1:]


def _check_out(out: Any, shape: tuple[int, ...], dtype: Any) -> None:
    """Refuse an ``out`` that would be broadcast, or would round what torch itself does not.

    Raises:
        InvalidProblem: which rule, and what to give instead.
    """
    if not isinstance(out, torch.Tensor):
        raise InvalidProblem(f"out must be a tensor; use torch.empty, got {type(out)}")
    if out.shape != shape:
        raise InvalidProblem(f"out must have the shape {tuple(shape)}, got {tuple(out.shape)}")
    if not torch.can_cast(dtype, out.dtype):
        raise InvalidProblem(f"out must hold {dtype}, the type of the result; got {out.dtype}")


def _factor(name: str, factor: float, dtype: Any) -> float:
    """A factor as torch takes it without changing the type of D.

    Raises:
        InvalidProblem: a type without fractions does not hold it, or it is too large for the running sum.
    """
    if dtype.is_floating_point or dtype.is_complex:
        if _MOST < abs(factor) < math.inf:
            most = max(torch.finfo(dtype).max, _MOST)  # float16 adds up in float32
            if most < abs(factor):
                raise too_large(name, factor, most, str(dtype))
        return factor
    low, high = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if not (factor.is_integer() and low <= factor <= high):
        raise InvalidProblem(f"{name} must be a value of type {dtype}, got {factor:g}")
    return int(factor)


def watched() -> bool:
    """Whether torch records or counts what it runs, and would miss a launch of ours."""
    return _modes() > 0 or _tracing() or (_functions() > 0 and _before_dispatch() > 0)


def activated(x: Any, activation: Activation) -> Any:
    """The activation computed by torch, gelu in its tanh approximation."""
    if activation is Activation.RELU:
        return torch.relu(x)
    return torch.nn.functional.gelu(x, approximate="tanh") if activation is Activation.GELU else x


def _facts(array: Any) -> Hashable:
    return None if array is None else (array.shape, array.stride(), array.dtype, array.device)


def _allow_tf32() -> Callable[[], Any]:
    # NOTE: the functions behind the public properties, which cost half a launch.
    public = torch.backends.cuda.matmul
    precision = getattr(torch._C, "_get_fp32_precision_getter", None)
    if precision is not None and hasattr(public, "fp32_precision"):
        # NOTE: the older flag raises an error once this setting was used; this one follows both.
        return lambda: precision("cuda", "matmul") == "tf32"
    return getattr(torch._C, "_get_cublas_allow_tf32", lambda: public.allow_tf32)


def _raw_stream() -> Callable[[int], int]:
    # NOTE: the public torch.cuda.current_stream(device).cuda_stream costs more than a whole launch; compilers
    # built on torch use this one, which is why it is stable.
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is None:
        return lambda device: int(torch.cuda.current_stream(device).cuda_stream) if device >= 0 else 0
    return lambda device: raw(device) if device >= 0 else 0
