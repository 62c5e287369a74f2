"""What a run of a benchmark rests on, and its files."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

from tilewright.device import DeviceSpec

RESULTS = Path(__file__).parent / "results"


def device_facts(spec: DeviceSpec, driver: str) -> dict[str, Any]:
    """The device, its class and its driver."""
    return {"device": spec.to_dict(), "device_class": spec.device_class.id, "driver": driver}


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def write_json(path: Path, data: Any) -> None:
    """Replace a file at once, so that whoever is killed in between leaves the old one."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n")
    os.replace(part, path)
