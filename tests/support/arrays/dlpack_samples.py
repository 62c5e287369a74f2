"""Stand-ins for arrays of JAX and tensors of torch on the CPU, and what every DLPack producer must pass."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import re
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from array_samples import fit_together, formula

from tilewright.errors import InvalidProblem
from tilewright.http.tensors import from_array, host_array, to_array
from tilewright.matmul.matmul import LocalMatmul

SENT = ("float16", "float32", "float64", "int8", "uint8", "int32")
"""Types that DLPack and the wire have."""
NUMPY_LACKS = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
NOT_SENT = ("bool", "int64", "complex64")
_BFLOAT = 4  # kDLBfloat
_TYPE_OFFSETS = {
    b"dltensor_versioned": 52,
    b"dltensor": 20,
}  # of the type's code in DLManagedTensor(Versioned)


def capsule_of(values: Any, max_version: tuple[int, int] | None) -> Any:
    """The DLPack capsule of an array, of a type that NumPy has or of bfloat16."""
    if values.dtype != ml_dtypes.bfloat16:
        return values.__dlpack__(max_version=max_version)
    capsule = values.view(np.uint16).__dlpack__(max_version=max_version)
    name = b"dltensor_versioned" if max_version and max_version >= (1, 0) else b"dltensor"
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    ctypes.c_uint8.from_address(pointer(capsule, name) + _TYPE_OFFSETS[name]).value = _BFLOAT
    return capsule


class LikeJax:
    """An array as JAX has them: read-only, with all arguments of DLPack, and first in products. Its capsules
    are of DLPack 1, or of an earlier one as those of JAX 0.10."""

    __array_priority__ = 100

    def __init__(self, values: Any, deleted: bool = False, versioned: bool = True) -> None:
        self._memory, self._values = values, values.view()
        self._deleted, self._versioned = deleted, versioned
        self._values.flags.writeable = False
        self.shape, self.ndim, self.dtype = values.shape, values.ndim, values.dtype

    def _kept(self) -> Any:
        if self._deleted:
            raise RuntimeError(f"Array has been deleted with shape={self.shape}.\nA second line.")
        return self._values

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        assert stream is None
        if dl_device not in (None, (1, 0)):
            raise BufferError("this array lies on the CPU")
        self._kept()
        if self.dtype.name.startswith("float8"):
            raise BufferError(f"{self.dtype} has no DLPack equivalent")
        values = self._kept() if self._versioned else self._memory
        return capsule_of(values.copy() if copy else values, max_version if self._versioned else None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self._kept(), dtype, copy=copy)

    @property
    def T(self) -> LikeJax:
        return LikeJax(self._values.T)

    def astype(self, dtype: str) -> LikeJax:
        return LikeJax(self._values.astype(dtype))

    def __rmatmul__(self, other: Any) -> LikeJax:
        return LikeJax(np.matmul(other, self._values))


LikeJax.__module__, LikeJax.__name__ = "jaxlib._jax", "ArrayImpl"


class LikeTorch:
    """A tensor as torch has them on the CPU: DLPack refuses gradients and conjugates, and drops the sign of
    views of negated numbers."""

    __array_priority__ = 1000

    def __init__(
        self, memory: Any, requires_grad: bool = False, conj: bool = False, neg: bool = False
    ) -> None:
        self._memory, self.requires_grad = memory, requires_grad
        self._conj, self._neg = conj, neg
        self.dtype, self.shape, self.ndim = f"torch.{memory.dtype.name}", memory.shape, memory.ndim

    def resolve_neg(self) -> LikeTorch:
        return LikeTorch(-self._memory, self.requires_grad, self._conj) if self._neg else self

    def __dlpack__(
        self, *, stream: Any = -1, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        assert stream in (None, -1)
        assert dl_device in (None, (1, 0))
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        if self._conj:
            raise BufferError("Can't export tensors with the conjugate bit set")
        return capsule_of(self._memory.copy() if copy else self._memory, max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __rmatmul__(self, other: Any) -> Any:
        raise TypeError(f"unsupported operand type(s) for @: {type(other)} and 'Tensor'")


LikeTorch.__module__, LikeTorch.__name__ = "torch", "Tensor"


@contextlib.contextmanager
def torch_alike() -> Iterator[None]:
    """In the block, ``torch`` is a module whose tensors are :class:`LikeTorch`."""
    module = SimpleNamespace(Tensor=LikeTorch, nn=SimpleNamespace(Parameter=LikeTorch))
    with mock.patch.dict(sys.modules, torch=module):
        yield


class Earlier:
    """What offers DLPack without the arguments that came later, as earlier releases of torch."""

    def __init__(self, values: Any) -> None:
        self.array = values

    def __dlpack__(self, stream: object = None) -> object:
        assert stream is None
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@dataclasses.dataclass
class Produced:
    """An array of some library, and what a service must get of it.

    Attributes:
        array: the array.
        values: its values in NumPy.
        refused: what the error must say, if it must not be sent; else None.
    """

    array: Any
    values: Any
    refused: str | None = None


def why_not_sent(dtype: str, instead: str) -> str | None:
    """What the error for a type says, if there must be one; ``instead`` is what a library's user gives."""
    return "use one of " if dtype in NOT_SENT else instead if dtype in NUMPY_LACKS else None


def check_sent(produced: Produced) -> None:
    """A service gets the values of an array, or the caller one line that says what to give."""
    if produced.refused is not None:
        with pytest.raises(InvalidProblem, match=rf"\Aa .*[;:] .*{re.escape(produced.refused)}.*\Z"):
            host_array("a", produced.array)
        return
    dtype, host = host_array("a", produced.array)
    assert (dtype, host.dtype.name) == (produced.values.dtype.name,) * 2
    np.testing.assert_array_equal(host.reshape(produced.values.shape), produced.values)
    np.testing.assert_array_equal(to_array(from_array("a", produced.array)).ravel(), produced.values.ravel())


def check_foreign_product(
    matmul: LocalMatmul, given: dict[str, Any], foreign: Any, kinds: set[str], factors: dict[str, Any]
) -> None:
    """``matmul`` with arrays of another library beside those of NumPy: NumPy's answer, or what to convert.

    Args:
        given: a, b, out and bias of NumPy; None for those that are not given.
        foreign: makes an array of the other library.
        kinds: which of them are of the other library.
    """
    kinds = {name for name in kinds if given[name] is not None}
    copies = {name: None if one is None else one.copy() for name, one in given.items()}
    arrays = {name: foreign(one) if name in kinds else one for name, one in given.items()}
    fits = fit_together({name: None if one is None else one.shape for name, one in given.items()}, factors)
    try:
        got = matmul(*arrays.values(), **factors)
    except (InvalidProblem, ValueError, TypeError) as error:
        told = str(error)
        assert not fits or (kinds - {"b"} and type(error) is InvalidProblem)  # noqa: PT017
        if fits and "a" in kinds:
            assert "convert it, such as by numpy.asarray" in told
        elif fits:
            assert re.search(r"(out|the bias) must be an array as a is; use numpy\.array", told)
    else:
        assert kinds <= {"b"}
        if fits:
            want = formula(*copies.values(), factors)
            assert got.shape == want.shape
            np.testing.assert_allclose(np.asarray(got), want, rtol=1e-2, atol=1e-2)
            assert given["out"] is None or got is given["out"]
            return
    for name, copy in copies.items():
        if copy is not None and (name != "out" or name in kinds or kinds - {"b"}):
            np.testing.assert_array_equal(given[name], copy)
