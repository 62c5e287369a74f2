"""Devices for tests that need none."""

from __future__ import annotations

from tilewright.schema.device import DeviceSpec

HOPPER = DeviceSpec("cuda", "sm_90", "H200", 132, 141 << 30, 50 << 20, 227 << 10, 228 << 10)
