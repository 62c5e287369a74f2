"""The faults that tests/gpu plants, as far as that needs no GPU."""

from __future__ import annotations

import pytest
from device_samples import HOPPER
from wrong_kernels import FAULTS, Fault

from kernels.base.spec import SOURCES


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_has_its_place_and_a_valid_config(fault: Fault) -> None:
    assert (SOURCES / fault.source).read_text().count(fault.before) == 1
    assert fault.before != fault.after
    fault.config(HOPPER)
