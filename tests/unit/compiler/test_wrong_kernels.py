"""The planted faults of ``tests/gpu/test_gpu_wrong_kernels.py``: each makes another kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from device_samples import HOPPER
from wrong_kernels import FAULTS, Fault

from kernels.base.spec import SOURCES
from kernels.compiler.build import build
from kernels.registry import FAMILIES


def test_there_are_many_and_every_gpu_family_has_some() -> None:
    assert len(FAULTS) >= 50
    assert {fault.family for fault in FAULTS} == {
        name for name, family in FAMILIES.items() if family.device_kind == "cuda"
    }


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_has_one_place_and_a_valid_config(fault: Fault) -> None:
    assert (SOURCES / fault.source).read_text().count(fault.before) == 1
    assert fault.before != fault.after
    fault.config(HOPPER)


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_changes_the_machine_code(
    fault: Fault, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    right = build(FAMILIES[fault.family], fault.config(HOPPER), fault.problem, HOPPER)
    assert fault.built(HOPPER, monkeypatch, tmp_path).binary != right.binary
