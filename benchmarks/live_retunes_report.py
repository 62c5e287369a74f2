"""Reports of live re-tunes as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import pages

_PARTS = ("check", "measure", "idle", "search", "race", "other")
_REGRET_HEADERS = (
    "space",
    "re-tunes x trials",
    "regret: median",
    "p95",
    "most",
    "tied with the optimum",
    "different winners",
    "flip rate",
    "rank of the best recorded",
)
_SECONDS_HEADERS = ("space", "compile cache", "wall clock", "device", *_PARTS, "compilers")


def line(tune: Mapping[str, Any]) -> str:
    """One re-tune."""
    seconds = tune["seconds"]
    cold = ", nothing compiled before" if tune["cold"] else ""
    won = str(tune["config"]["knobs"]) if tune["config"] else f"no winner: {tune['failure']}"
    spent = (
        f"{tune['measured']} trials in {seconds['wall']:.1f} s ({seconds['gpu']:.1f} s of the device{cold})"
    )
    return f"seed {tune['seed']}: {spent}: {won}"


def tables(reports: Sequence[Mapping[str, Any]]) -> str:
    """Regret, and below where the seconds went, of reports with figures, in Markdown."""
    seconds = [row for report in reports for row in _seconds_rows(report)]
    regret = pages.table(_REGRET_HEADERS, [_regret_row(report) for report in reports])
    return f"{regret}\n\n{pages.table(_SECONDS_HEADERS, seconds)}\n"


def _regret_row(report: Mapping[str, Any]) -> tuple[str, ...]:
    found = report["figures"]
    winners = found["tunes"] - found["failed"]
    failed = f", {found['failed']} failed" if found["failed"] else ""
    regret = [f"{100 * found[name]:.2f} %" for name in ("regret_median", "regret_p95", "regret_most")]
    return (
        report["space"]["name"],
        f"{found['tunes']} x {report['plan']['budget']}{failed}",
        *regret,
        f"{found['in_tie_set']} of {winners}",
        str(found["different_winners"]),
        "" if found["flip_rate"] is None else f"{found['flip_rate']:.2f}",
        f"{found['best_recorded_rank']} of {len(report['race']['contenders'])}",
    )


def _seconds_rows(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            report["space"]["name"],
            cache,
            *(_range(of[part]) for part in ("wall", "gpu")),
            *(f"{of[part]['median']:.2f}" for part in (*_PARTS, "compile")),
        )
        for cache, of in report["figures"]["seconds"].items()
    ]


def _range(of: Mapping[str, float]) -> str:
    return f"{of['median']:.1f} ({of['low']:.1f} .. {of['high']:.1f})"
