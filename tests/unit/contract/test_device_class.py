"""``DeviceSpec`` and the class that keys its results."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from device_samples import H200

from tilewright import DeviceClass, DeviceSpec

CPU = DeviceSpec("host", "x86_64_v4", "Some CPU @ 2.5 GHz", 2, 8 << 30, 32 << 20)


def test_class_of_a_gpu() -> None:
    # 150.11e9 bytes round to 150 GB.
    assert H200.device_class == DeviceClass("sm_90", "sm_90-132sm-150gb-700w")


def test_unknown_power_and_mig() -> None:
    assert dataclasses.replace(H200, power_watts=0).device_class.id == "sm_90-132sm-150gb"
    slice_ = dataclasses.replace(H200, sm_count=16, memory_bytes=18_000_000_000, mig="1g.18gb")
    assert slice_.device_class.id == "sm_90-16sm-18gb-700w-1g.18gb"


@pytest.mark.parametrize(
    "change", [{"name": "another name"}, {"clock_mhz": 1}, {"l2_bytes": 1}, {"memory_gbps": 1}]
)
def test_a_gpu_is_not_keyed_by_its_name(change: dict[str, Any]) -> None:
    assert dataclasses.replace(H200, **change).device_class == H200.device_class


@pytest.mark.parametrize(
    "change",
    [
        {"arch": "sm_89"},
        {"sm_count": 114},
        {"memory_bytes": 80_000_000_000},
        {"power_watts": 350},
        {"mig": "1g"},
    ],
)
def test_what_decides_performance_is_in_the_key(change: dict[str, Any]) -> None:
    assert dataclasses.replace(H200, **change).device_class != H200.device_class


def test_a_host_is_keyed_by_model_and_threads() -> None:
    # First 8 hex digits of SHA-256("Some CPU @ 2.5 GHz").
    assert CPU.device_class == DeviceClass("x86_64_v4", "x86_64_v4-2t-1346f97a")
    assert dataclasses.replace(CPU, name="Another CPU").device_class != CPU.device_class
    assert dataclasses.replace(CPU, sm_count=4).device_class != CPU.device_class
    assert dataclasses.replace(CPU, memory_bytes=1).device_class == CPU.device_class


@pytest.mark.parametrize(
    ("arch", "capability"), [("sm_80", (8, 0)), ("sm_89", (8, 9)), ("sm_90", (9, 0)), ("sm_100", (10, 0))]
)
def test_compute_capability(arch: str, capability: tuple[int, int]) -> None:
    assert dataclasses.replace(H200, arch=arch).compute_capability == capability


def test_a_host_has_no_compute_capability() -> None:
    assert CPU.compute_capability == (0, 0)


@pytest.mark.parametrize("spec", [H200, CPU], ids=lambda spec: spec.kind)
def test_round_trip(spec: DeviceSpec) -> None:
    assert DeviceSpec.from_dict(spec.to_dict()) == spec


def test_a_device_of_an_earlier_version_is_read() -> None:
    now = H200.to_dict()
    before = {{"sm_count": "units", "smem_per_sm": "smem_per_unit"}.get(k, k): v for k, v in now.items()}
    assert DeviceSpec.from_dict(before) == H200
