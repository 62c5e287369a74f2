"""What the demo runs on: a service of its own in another process, and a view of a job's progress."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tilewright import wire
from tilewright.errors import TilewrightError
from tilewright.follow import OnProgress
from tilewright.problem import GemmProblem

_STOP_S = 30.0
_LOG_TAIL = 2000
_LOG_STEPS = 8


class DemoFailed(TilewrightError):
    """A step of the demo did not do what it should."""


@contextlib.contextmanager
def running_service(folder: Path, device: str | None) -> Iterator[str]:
    """Run ``tilewright serve`` on a free port with everything it writes in ``folder``; gives its URL.

    Raises:
        DemoFailed: it did not start, or did not stop cleanly.
    """
    log = folder / "log"
    command = [sys.executable, "-m", "service.cli", "serve", "--json"]
    with log.open("w") as file:
        # NOTE: a session of its own, so that Ctrl-C stops the demo, and the demo the service.
        process = subprocess.Popen(
            command,
            env=_environment(folder, device),
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            start_new_session=True,
        )
    try:
        yield _announced_url(process, log)
    finally:
        code = _stop(process)
    if code != 0:
        raise DemoFailed(f"the service stopped with exit code {code}:\n{log.read_text()[-_LOG_TAIL:]}")


def speed(problem: GemmProblem, micros: float) -> str:
    """Microseconds and what they mean."""
    gflops = problem.flops / micros / 1e3
    rate = f"{gflops / 1e3:.1f} TFLOP/s" if gflops >= 1e3 else f"{gflops:.1f} GFLOP/s"
    return f"{micros:.1f} us, {rate}"


@contextlib.contextmanager
def shown_progress(problem: GemmProblem, max_trials: int) -> Iterator[OnProgress]:
    """Show a job's progress on stderr: a live bar on a terminal, now and then a line elsewhere."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _lines(console, problem)
        return
    columns = (
        TextColumn("{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[best]}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("waiting", total=max_trials, best="")

        def show(news: wire.ProgressView) -> None:
            total = news.measured if news.phase in ("race", "done") else news.planned
            bar.update(
                task, description=news.phase, completed=news.measured, total=total, best=_best(problem, news)
            )

        yield show


def _environment(folder: Path, device: str | None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TILEWRIGHT_")}
    chosen = {
        "TILEWRIGHT_DATABASE_URL": f"sqlite:///{folder / 'tilewright.db'}",
        "TILEWRIGHT_CACHE_DIR": str(folder / "artifacts"),
        "TILEWRIGHT_PORT": "0",
    }
    return kept | chosen | ({"TILEWRIGHT_DEVICES": device} if device else {})


def _announced_url(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        with contextlib.suppress(json.JSONDecodeError):
            return str(json.loads(text)["url"])
    raise DemoFailed(f"the service did not start:\n{log.read_text()[-_LOG_TAIL:]}")


def _stop(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    process.terminate()
    try:
        return process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
    finally:
        process.stdout.close()


def _lines(console: Console, problem: GemmProblem) -> OnProgress:
    shown: set[int] = set()

    def show(news: wire.ProgressView) -> None:
        step = news.measured * _LOG_STEPS // max(1, news.planned)
        if step not in shown and news.best_us:
            shown.add(step)
            count = f"{news.measured:>4} of {news.planned}"
            console.print(
                f"            {count}, {news.elapsed_s:.0f} s, {_best(problem, news)}", soft_wrap=True
            )

    return show


def _best(problem: GemmProblem, news: wire.ProgressView) -> str:
    return f"best {speed(problem, news.best_us)}" if news.best_us else ""
