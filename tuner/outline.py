"""What the vendor library would run, as first configs for kernels that can do alike."""

from __future__ import annotations

from kernels.outline import Outline
from tilewright.problem import GemmProblem
from tuner.devices.base import Device
from tuner.operands import rotated_sets

MOST = 2


def vendor_outlines(device: Device, problem: GemmProblem) -> list[Outline]:
    """The first two different outlines among the library's proposals, in its order; none where it tells of
    none or does not compute the problem.

    Nothing is timed: the same library on the same device always tells the same.

    Raises:
        DeviceUnavailable: the library is missing.
        LaunchError: the device failed.
    """
    proposed = device.vendor(problem, rotated_sets(device, problem))
    told = dict.fromkeys(choice.outline for choice in proposed if choice.outline)
    return list(told)[:MOST]
