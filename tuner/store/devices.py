"""Devices that were seen."""

from __future__ import annotations

import json

from sqlalchemy import select
from sqlalchemy.orm import Session

from tilewright.device import DeviceSpec
from tuner.store.codec import canonical
from tuner.store.models import DeviceRow
from tuner.store.records import DeviceRecord, utc_now
from tuner.store.upsert import insert_or_update


def seen(session: Session, spec: DeviceSpec) -> int:
    """Note that a device is here now; gives its id."""
    now = utc_now()
    values = {
        "spec": canonical(spec.to_dict()),
        "device_class": spec.device_class.id,
        "arch": spec.arch,
        "first_seen": now,
        "last_seen": now,
    }
    device_id: int = insert_or_update(session, DeviceRow, values, identity=("spec",), kept=("first_seen",))
    return device_id


def listing(session: Session) -> list[DeviceRecord]:
    """Every device, the one seen last first."""
    rows = session.scalars(select(DeviceRow).order_by(DeviceRow.last_seen.desc(), DeviceRow.id))
    return [DeviceRecord(parse(row.spec), row.device_class, row.first_seen, row.last_seen) for row in rows]


def parse(text: str) -> DeviceSpec:
    """The device of a canonical text."""
    return DeviceSpec.from_dict(json.loads(text))
