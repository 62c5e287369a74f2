"""One launch of a kernel, prepared once and made as often as wanted."""

from __future__ import annotations

import ctypes
from typing import Any

from tilewright.launch import driver
from tilewright.launch.tensor_map import Descriptor


class Step:
    """One ``cuLaunchKernelEx``.

    Attributes:
        values: its arguments; ``arguments``: their addresses.
    """

    def __init__(
        self,
        function: ctypes.c_void_p,
        entry: str,
        values: list[Any],
        shape: tuple[tuple[int, int, int], tuple[int, int, int], int],
        attributes: list[driver.LaunchAttribute],
    ) -> None:
        self._function, self._entry, self.values = function, entry, values
        pointers = [_address(value) for value in values]
        self.arguments = (ctypes.c_void_p * len(pointers))(*pointers)
        self._attributes = (driver.LaunchAttribute * len(attributes))(*attributes)
        self._config = driver.LaunchConfig(attributes=self._attributes, attribute_count=len(attributes))
        self._config.grid[:], self._config.block[:], self._config.shared_bytes = shape
        self._reference = ctypes.byref(self._config)
        self._launch = driver.libcuda().cuLaunchKernelEx

    def __call__(self, stream: int) -> None:
        self._config.stream = stream
        status = self._launch(self._reference, self._function, self.arguments, None)
        if status:
            driver.check(status, f"launch {self._entry}")


def programmatic() -> list[driver.LaunchAttribute]:
    """Attributes of a kernel that may start while the one before it ends."""
    kind = driver.LAUNCH_ATTRIBUTE_PROGRAMMATIC_SERIALIZATION
    return [driver.LaunchAttribute(kind, value=(1, 0, 0))]


def clustered(x: int, y: int = 1, z: int = 1) -> list[driver.LaunchAttribute]:
    """Attributes of a kernel whose blocks come in clusters of x, y, z."""
    if (x, y, z) == (1, 1, 1):
        return []
    return [driver.LaunchAttribute(driver.LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value=(x, y, z))]


def _address(value: Any) -> int:
    return value.address if isinstance(value, Descriptor) else ctypes.addressof(value)
