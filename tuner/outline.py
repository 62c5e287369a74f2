"""What the vendor library would run, as a first config for kernels that can do alike."""

from __future__ import annotations

from kernels.outline import Outline
from tilewright.problem import GemmProblem
from tuner.devices.base import Device
from tuner.operands import rotated_sets
from tuner.race import glance

MOST_CHOICES = 16
_GLANCE_US = 200.0


def vendor_outline(device: Device, problem: GemmProblem) -> Outline | None:
    """The outline of the quickest at a glance of the 16 algorithms that the library proposes first.

    The one that it would take itself is among them, and not always the quickest. None where it tells of no
    outline or does not compute the problem.

    Raises:
        DeviceUnavailable: the library is missing.
        LaunchError: the device failed.
    """
    choices = device.vendor(problem, rotated_sets(device, problem))
    told = [(choice, choice.outline) for choice in choices[:MOST_CHOICES] if choice.outline]
    if not told:
        return None
    first, _ = told[0]
    count = max(1, round(_GLANCE_US / max(glance(device, first.launches), 0.1)))
    _, outline = min(told, key=lambda pair: glance(device, pair[0].launches[:count]))
    return outline
