"""``tilewright sets`` and ``tilewright diff``."""

from __future__ import annotations

from typing import Annotated

import typer

from service.commands.options import AsJson, Url
from service.commands.output import connect, print_json, print_table
from tilewright import Client, wire

app = typer.Typer(no_args_is_help=True, help="Config sets: snapshots of what a device class is served.")
Digest = Annotated[str, typer.Argument(help="sha256:..., or its first characters.")]
Class = Annotated[
    str | None, typer.Option("--device-class", help="That of the service's first device by default.")
]
_COLUMNS = ("digest", "device class", "entries", "made", "served")
_SCAN = 1000


@app.command("ls")
def list_sets(
    device_class: Annotated[str | None, typer.Option(help="Only sets of this class.")] = None,
    limit: Annotated[int, typer.Option(help="How many, the newest first.", min=1, max=1000)] = 20,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List snapshots, the newest first; a new one is made when the winners changed and somebody asks."""
    with connect(url) as client:
        found = client.config_sets(device_class, limit=limit)
    if as_json:
        print_json(found)
    else:
        print_table(_COLUMNS, map(_row, found.items))


@app.command()
def pin(digest: Digest, url: Url = None, as_json: AsJson = False) -> None:
    """Serve a snapshot to its device class whatever is tuned from now on."""
    with connect(url) as client:
        chosen = _find(client, digest)
        _print(client.pin(chosen.device_class, chosen.digest), as_json)


@app.command()
def rollback(device_class: Class = None, url: Url = None, as_json: AsJson = False) -> None:
    """Pin the snapshot before the one that is served now."""
    with connect(url) as client:
        name = device_class or client.devices()[0].device_class
        found = client.config_sets(name, limit=_SCAN).items
        serving = [index for index, item in enumerate(found) if item.serving]
        if not serving or serving[0] + 1 >= len(found):
            typer.echo(f"error: {name} has no snapshot before the one that is served", err=True)
            raise typer.Exit(1)
        _print(client.pin(name, found[serving[0] + 1].digest), as_json)


@app.command()
def unpin(device_class: Class = None, url: Url = None, as_json: AsJson = False) -> None:
    """Serve the winners as they stand again."""
    with connect(url) as client:
        name = device_class or client.devices()[0].device_class
        client.unpin(name)
    if as_json:
        print_json({"device_class": name, "pinned": None})
    else:
        typer.echo(f"{name} is served its latest winners")


def diff(
    a: Digest,
    b: Annotated[str, typer.Argument(help="Another one; what is served now by default.")] = "",
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show what config set B has other than config set A."""
    with connect(url) as client:
        before = _find(client, a)
        after = _find(client, b).digest if b else _current(client, before.device_class)
        found = client.diff(before.digest, after)
    if as_json:
        print_json(found)
        return
    rows = [("+", change) for change in found.added] + [("-", change) for change in found.removed]
    rows += [("~", change) for change in found.changed]
    print_table(("", "problem", "before us", "after us", "times as fast", "config"), map(_change, rows))
    typer.echo(f"{found.unchanged} unchanged")


def _current(client: Client, device_class: str) -> str:
    answer = client.current_set(device_class)
    assert answer is not None  # asked without an ETag
    return answer.config_set.digest


def _find(client: Client, start: str) -> wire.SetInfo:
    """The set whose digest begins so, with or without ``sha256:``."""
    wanted = f"sha256:{start.removeprefix('sha256:')}"
    page = client.config_sets(limit=_SCAN)
    found = [item for item in page.items if item.digest.startswith(wanted)]
    if len(found) != 1:
        told = "no config set starts" if not found else f"{len(found)} config sets start"
        raise typer.BadParameter(f"{told} with {start}; 'tilewright sets ls' lists them")
    return found[0]


def _print(info: wire.SetInfo, as_json: bool) -> None:
    if as_json:
        print_json(info)
    else:
        print_table(_COLUMNS, [_row(info)])


def _row(info: wire.SetInfo) -> tuple[object, ...]:
    made = info.created_at.strftime("%Y-%m-%d %H:%M:%S")
    return info.digest, info.device_class, info.entries, made, info.serving or ""


def _change(marked: tuple[str, wire.SetChange]) -> tuple[object, ...]:
    mark, change = marked
    before, after = (f"{entry.median_us:.2f}" if entry else "-" for entry in (change.before, change.after))
    ratio = f"{change.time_ratio:.3f}" if change.time_ratio else "-"
    doubt = "" if change.decided or change.time_ratio is None else " (within noise)"
    entry = change.after or change.before
    config = entry.config.to_config() if entry else "-"
    return mark, change.problem.to_problem(), before, after, ratio + doubt, config
