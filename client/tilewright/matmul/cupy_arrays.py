"""CuPy arrays."""

from __future__ import annotations

import operator
from collections.abc import Hashable
from typing import Any

import cupy

from tilewright.matmul.numpy_arrays import NumpyArrays


class CupyArrays(NumpyArrays):
    """Implements :class:`tilewright.matmul.arrays.ArrayLibrary` for ``cupy.ndarray``."""

    xp: Any = cupy

    address: Any = operator.attrgetter("data.ptr")

    def stream(self, device: int) -> int:  # noqa: ARG002
        return int(cupy.cuda.get_current_stream().ptr)

    def product_in_float32(self, a: Any, b: Any) -> Any:
        # NOTE: rounded to float16 once more, as tensor cores multiply no float32.
        return (a @ b).astype("float32")

    def where(self, a: Any, b: Any) -> Hashable:
        """The operands' devices and the current one."""
        return a.data.device_id, b.data.device_id, cupy.cuda.runtime.getDevice()

    def writable(self, array: Any) -> bool:  # noqa: ARG002
        """True: CuPy has no read-only arrays."""
        return True

    def device(self, array: Any) -> int:
        """Ordinal of the CUDA device."""
        return int(array.data.device_id)
