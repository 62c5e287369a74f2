"""What the service knows: winners, config sets, kernel families and devices."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.options import Asked, asks, takes
from service.cli.output import (
    MOST_LISTED,
    PROBLEM_ARGUMENTS,
    AsJson,
    ElementType,
    NewestFirst,
    OperandLayout,
    Url,
    connect,
    device_named,
    echo,
    only_one,
    print_best,
    print_json,
    print_list,
    print_result,
    print_table,
    problem_of,
    tell_end,
    tell_unknown,
)
from tilewright import Client, wire
from tilewright.errors import ServiceError, printable
from tilewright.schema.explanation import Alternative, Explanation
from tilewright.schema.match import MatchOptions
from tilewright.schema.problem import GemmProblem

Extents = Annotated[
    list[int] | None,
    typer.Argument(help="M N K of one problem; nothing for the list.", metavar="M N K", min=1),
]
Arch = Annotated[
    str | None,
    typer.Option(help="sm_90 and the like; the class of the service's first device by default."),
]
Nearest = Annotated[
    bool, typer.Option("--nearest", help="Take the nearest tuned problem where this one is not.")
]
sets_app = typer.Typer(no_args_is_help=True, help="Config sets: snapshots of what a device class is served.")
Digest = Annotated[str, typer.Argument(help="sha256:..., or its first characters.")]
Class = Annotated[
    str | None, typer.Option("--device-class", help="That of the service's first device by default.")
]
_SET_COLUMNS = ("digest", "device class", "entries", "made", "served")
_BEST_COLUMNS = ("problem", "family", "us", "TFLOP/s", "over vendor", "made", "device class")
_SCAN = 1000


@takes("limits", MatchOptions, "match")
@takes("more", GemmProblem, *PROBLEM_ARGUMENTS)
def best(
    limits: dict[str, Any],
    more: dict[str, Any],
    extents: Extents = None,
    dtype: ElementType = None,
    layout: OperandLayout = None,
    arch: Arch = None,
    nearest: Nearest = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the stored winner of a problem with its config, or list all winners that have what is given."""
    if extents and len(extents) != 3:
        raise typer.BadParameter("give M, N and K, or nothing for the list")
    with connect(url) as client:
        kind, device_class = _asked_of(client, arch)
        if not extents:
            given = {"arch": arch, "device_class": device_class, "dtype": dtype, "layout": layout}
            options = {name: value for name, value in given.items() if value} | more | limits
            _show_list(client, options, as_json)
            return
        match = wire.Match.NEAREST if nearest else wire.Match.EXACT
        problem = problem_of(extents, dtype, layout, kind, **more)
        found = client.best_config(problem, arch=arch, device_class=device_class, match=match, **limits)
    if as_json:
        print_json(found)
    else:
        print_best(found)


def _asked_of(client: Client, arch: str | None) -> tuple[str, str | None]:
    """The kind of the devices that are asked about, and their class; None for those of an architecture."""
    if arch:
        return "cuda" if arch.startswith("sm_") else "host", None
    first = device_named(client, None)
    return first.kind, first.device_class


def _show_list(client: Client, options: dict[str, Any], as_json: bool) -> None:
    found = client.configs(**options)
    if not found:
        elsewhere = client.config_list(**options).archs
        hint = f"there are winners on {', '.join(elsewhere)}" if elsewhere else "'tilewright tune' makes them"
        echo(f"no winner on {' '.join(map(str, options.values()))}; {hint}", err=True)
    columns = _BEST_COLUMNS if "arch" in options else _BEST_COLUMNS[:-1]
    print_list(found, as_json, columns, (_best_row(item)[: len(columns)] for item in found))


def _best_row(item: wire.BestConfigView) -> tuple[object, ...]:
    ratio = f"{item.speedup.value:.3f}"
    over_vendor = {"tie": f"{ratio} tie", "disturbed": "disturbed"}.get(item.verdict, ratio)
    micros = item.timing.median_us
    us, tflops = f"{micros:.{1 if micros >= 100 else 2}f}", f"{item.tflops:.{1 if item.tflops >= 1 else 4}f}"
    made = f"{item.created:%Y-%m-%d}"
    return item.problem, item.config.family, us, tflops, over_vendor, made, item.device_class


Every = Annotated[bool, typer.Option("--all", help="Also alternatives that a rule excludes.")]


@asks()
def explain(
    asked: Asked,
    arch: Arch = None,
    nearest: Nearest = False,
    every: Every = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Explain the stored winner of a problem: its limits, how it fills the device, and the alternatives."""
    with connect(url) as client:
        kind, device_class = _asked_of(client, arch)
        problem = asked.on(kind)
        match = wire.Match.NEAREST if nearest else wire.Match.EXACT
        found = client.explain_result(problem, match=match, arch=arch, device_class=device_class)
    if as_json:
        print_json(found)
        return
    print_best(found.result)
    _print_explanation(found.explanation, every)


def _print_explanation(found: Explanation, every: bool) -> None:
    if found.outdated:
        echo(f"outdated   this release would not build the config: {found.outdated}")
    for limit in found.limits:
        time = "unknown" if limit.us is None else f"{limit.us:.2f} us"
        echo(f"{limit.name:<10} {time}: {limit.basis}")
    if found.reached is not None:
        echo(f"reached    {found.reached:.0%} of the {found.nearest_limit} limit")
    if found.waves:
        waves = found.waves
        echo(
            f"waves      {waves.work_tiles} work tiles, {waves.at_once} at once: {waves.waves} waves, last"
            f" {waves.last_filled:.0%} full; {waves.useful:.0%} of the SMs' time computes D"
        )
    if found.occupancy:
        held = found.occupancy
        echo(
            f"occupancy  {held.ctas} CTAs of {held.threads} threads per SM, by {held.binding}: "
            f"{held.registers} registers a thread, {held.smem_bytes} of {held.smem_limit} bytes of shared "
            "memory"
        )
    needed, loaded = found.traffic.needed, found.traffic.loaded
    more = "" if loaded is None else f", {loaded / 1e6:.2f} MB loaded by the tiles"
    echo(f"bytes      {needed / 1e6:.2f} MB at least{more}")
    shown = [one for one in found.alternatives if every or one.valid]
    print_table(("knob", "value", "time", "verdict"), map(_alternative_row, shown))
    if len(shown) < len(found.alternatives):
        echo(f"{len(found.alternatives) - len(shown)} more are excluded by a rule: --all shows them")


def _alternative_row(one: Alternative) -> tuple[object, ...]:
    ratio = "" if one.ratio is None else f"x {one.ratio:.3f}{' estimated' if one.estimated else ''}"
    time = f"{one.measured_us:.2f} us {ratio}" if one.measured_us else ratio
    verdict = one.excluded if one.excluded else "measured" if one.measured_us else "not tried"
    return one.knob, one.value, time, verdict if one.valid else f"invalid: {verdict}"


@sets_app.command("ls")
def list_sets(
    device_class: Annotated[str | None, typer.Option(help="Only sets of this class.")] = None,
    limit: NewestFirst = 20,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List snapshots, the latest first; a new one is made when the winners changed and somebody asks."""
    with connect(url) as client:
        found = client.config_sets(device_class, limit=limit)
        if not found.items:
            tell_unknown(client, device_class)
    print_list(found, as_json, _SET_COLUMNS, map(_set_row, found.items))
    tell_end(limit, found.next)


@sets_app.command()
def pin(digest: Digest, url: Url = None, as_json: AsJson = False) -> None:
    """Serve a snapshot to its device class whatever is tuned from now on."""
    with connect(url) as client:
        chosen = _find_set(client, digest)
        _print_set(client.pin(chosen.device_class, chosen.digest), as_json)


@sets_app.command()
def rollback(device_class: Class = None, url: Url = None, as_json: AsJson = False) -> None:
    """Pin the last snapshot before the one that is served now that may be served."""
    with connect(url) as client:
        name = device_class or device_named(client, None).device_class
        newest_first = iter(client.config_sets(name, limit=_SCAN).items)
        next((item for item in newest_first if item.serving), None)  # goes past the one that is served
        pinned = next(filter(None, (_pin_if_allowed(client, item) for item in newest_first)), None)
    if pinned is None:
        echo(f"error: {name} has no snapshot before the one that is served that may be pinned", err=True)
        raise typer.Exit(1)
    _print_set(pinned, as_json)


def _pin_if_allowed(client: Client, info: wire.SetInfo) -> wire.SetInfo | None:
    """The snapshot, pinned; None, and on stderr why, if a kernel of it was deleted or is quarantined."""
    try:
        return client.pin(info.device_class, info.digest)
    except ServiceError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        echo(f"passed over {info.digest}: {error.problem.get('detail', error)}", err=True)
        return None


@sets_app.command()
def unpin(device_class: Class = None, url: Url = None, as_json: AsJson = False) -> None:
    """Serve the winners as they stand again."""
    with connect(url) as client:
        name = device_class or device_named(client, None).device_class
        client.unpin(name)
    print_result({"device_class": name, "pinned": None}, as_json, f"{name} is served its latest winners")


def diff(
    a: Digest,
    b: Annotated[str, typer.Argument(help="Another one; what is served now by default.")] = "",
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show what config set B has other than config set A."""
    with connect(url) as client:
        before = _find_set(client, a)
        after = _find_set(client, b).digest if b else _current_digest(client, before.device_class)
        found = client.diff(before.digest, after)
    if as_json:
        print_json(found)
        return
    rows = [("+", change) for change in found.added] + [("-", change) for change in found.removed]
    rows += [("~", change) for change in found.changed]
    print_table(("", "problem", "before us", "after us", "times as fast", "config"), map(_change_row, rows))
    echo(f"{found.unchanged} unchanged")


def _current_digest(client: Client, device_class: str) -> str:
    answer = client.current_set(device_class)
    assert answer is not None  # asked without an ETag
    return answer.config_set.digest


def _find_set(client: Client, start: str) -> wire.SetInfo:
    """The set whose digest begins so, with or without ``sha256:``."""
    wanted = f"sha256:{start.removeprefix('sha256:')}"
    page = client.config_sets(limit=_SCAN)
    found = {item.digest: item for item in page.items if item.digest.startswith(wanted)}
    return found[only_one(start, list(found), "config set", "tilewright sets ls")]


def _print_set(info: wire.SetInfo, as_json: bool) -> None:
    print_list(info, as_json, _SET_COLUMNS, [_set_row(info)])


def _set_row(info: wire.SetInfo) -> tuple[object, ...]:
    made = info.created_at.strftime("%Y-%m-%d %H:%M:%S")
    return info.digest, info.device_class, info.entries, made, info.serving or ""


def _change_row(marked: tuple[str, wire.SetChange]) -> tuple[object, ...]:
    mark, change = marked
    before, after = (f"{entry.median_us:.2f}" if entry else "-" for entry in (change.before, change.after))
    ratio = f"{change.time_ratio:.3f}" if change.time_ratio else "-"
    doubt = "" if change.decided or change.time_ratio is None else " (within noise)"
    entry = change.after or change.before
    config = entry.config if entry else "-"
    return mark, change.problem, before, after, ratio + doubt, config


def write_report(
    file: Annotated[Path, typer.Argument(help="Where to write, such as report.html.", dir_okay=False)],
    device_class: Annotated[str | None, typer.Option(help="Only results of this class.")] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Write the winners with their plots to one HTML file that opens without a server."""
    with connect(url) as client:
        written = client.report(file, device_class)
    print_result({"file": printable(file), "bytes": written}, as_json, f"{file}: {written} bytes")


def families(url: Url = None, as_json: AsJson = False) -> None:
    """List the kernel families with their knobs and what they compute on each device."""
    with connect(url) as client:
        found = client.families()
    if as_json:
        print_json(found)
        return
    for family in found:
        echo(f"{family.name} ({family.device_kind}): {family.doc}")
        print_table(
            ("  knob", "legal values", ""),
            ((f"  {knob.name}", " ".join(map(str, knob.legal)), knob.doc) for knob in family.knobs),
        )
        for one in family.support:
            layouts = ", ".join(one.layouts) if one.layouts else f"no: {one.why_not}"
            echo(f"  {one.device} {one.dtype}: {layouts}")


quarantine_app = typer.Typer(no_args_is_help=True, help="Configs that broke a device class.")


@quarantine_app.command("ls")
def list_quarantine(url: Url = None, as_json: AsJson = False) -> None:
    """List the configs that nobody tries or serves, the newest first, at most a thousand."""
    with connect(url) as client:
        found = client.quarantine(limit=MOST_LISTED)
    headers = ("id", "when", "device class", "config", "how", "job", "trial", "holds", "message")
    print_list(found.items, as_json, headers, map(_quarantine_row, found.items))
    tell_end(MOST_LISTED, found.next)


def _quarantine_row(one: wire.QuarantineView) -> tuple[object, ...]:
    when, trial = f"{one.created:%Y-%m-%d %H:%M:%S}", "" if one.trial is None else one.trial
    holds = "yes" if one.staleness == "fresh" else f"no: {one.staleness}"
    where = one.device_class, one.config, one.outcome.value, (one.job_id or "")[:12], trial
    return one.id, when, *where, holds, f"{one.message[:80]}, on {one.device}"


@quarantine_app.command("release")
def release_quarantined(
    what: Annotated[str, typer.Argument(help="An id of 'tilewright quarantine ls', or a device set aside.")],
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Have a config tried and served again, or a device used that was set aside."""
    with connect(url) as client:
        if what.isdecimal():
            client.release_quarantined(int(what))
        else:
            client.release_device(what)
    print_result({"released": what}, as_json, f"{what} is released")


def devices(url: Url = None, as_json: AsJson = False) -> None:
    """List the devices of the service."""
    with connect(url) as client:
        found = client.devices()
    headers = ("name", "model", "device class", "SMs", "memory GB", "driver", "state")
    print_list(found, as_json, headers, map(_device_row, found))


def _device_row(one: wire.DeviceView) -> tuple[object, ...]:
    memory, state = f"{one.memory_bytes / 1e9:.1f}", f"{one.state}: {one.detail}" if one.detail else one.state
    return one.name, one.model, one.device_class, one.sm_count, memory, one.driver, state
