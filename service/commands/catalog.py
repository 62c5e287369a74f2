"""``tilewright families`` and ``tilewright devices``."""

from __future__ import annotations

import typer

from service.commands.options import AsJson, Url
from service.commands.output import connect, print_json, print_table
from tilewright import wire


def families(url: Url = None, as_json: AsJson = False) -> None:
    """List the kernel families with their knobs and what they compute on each device."""
    with connect(url) as client:
        found = client.families()
    if as_json:
        print_json(found)
        return
    for family in found:
        typer.echo(f"{family.name} ({family.device_kind}): {family.doc}")
        print_table(
            ("  knob", "legal values", ""),
            ((f"  {knob.name}", " ".join(map(str, knob.legal)), knob.doc) for knob in family.knobs),
        )
        for support in family.support:
            typer.echo(f"  {_support(support)}")


def devices(url: Url = None, as_json: AsJson = False) -> None:
    """List the devices of the service."""
    with connect(url) as client:
        found = client.devices()
    if as_json:
        print_json(found)
        return
    headers = ("name", "model", "device class", "units", "memory GB", "driver", "state")
    print_table(
        headers,
        (
            (
                device.name,
                device.model,
                device.device_class,
                device.units,
                f"{device.memory_bytes / 1e9:.1f}",
                device.driver,
                device.state,
            )
            for device in found
        ),
    )


def _support(support: wire.SupportView) -> str:
    told = ", ".join(support.layouts) if support.layouts else f"no: {support.why_not}"
    return f"{support.device} {support.dtype}: {told}"
