"""``make demo``: start a service, tune one GEMM with progress and show what the client then runs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from service.cli.gemm import checked_gemm
from service.cli.output import rate
from tilewright import Client, wire
from tilewright.errors import TilewrightError
from tilewright.http.events import OnProgress
from tilewright.schema.problem import DType, GemmProblem, Layout

_STOP_S = 30.0
_LOG_TAIL = 2000
_LOG_STEPS = 8
_OF_THE_MACHINE = {"TILEWRIGHT_LOCK_DIR", "TILEWRIGHT_QUIET_WAIT_S"}  # settings that hold for the demo too


class DemoFailed(TilewrightError):
    """A step of the demo did not do what it should."""


@contextlib.contextmanager
def running_service(folder: Path, device: str | None) -> Iterator[str]:
    """Run ``tilewright serve`` on a free port with everything it writes in ``folder``; gives its URL.

    Raises:
        DemoFailed: it did not start, or did not stop cleanly.
    """
    log = folder / "log"
    command = [sys.executable, "-m", "service.cli.main", "serve", "--json"]
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
        tail = log.read_text()[-_LOG_TAIL:]
        raise DemoFailed(f"the service stopped with exit code {code}; see its log:\n{tail}")


def speed(problem: GemmProblem, micros: float) -> str:
    """Microseconds and what they mean."""
    return f"{micros:.1f} us, {rate(problem.flops / micros / 1e6)}"


def _environment(folder: Path, device: str | None) -> dict[str, str]:
    ours = {name for name in os.environ if name.startswith("TILEWRIGHT_")} - _OF_THE_MACHINE
    kept = {name: value for name, value in os.environ.items() if name not in ours}
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
    raise DemoFailed(f"the service did not start; see its log:\n{log.read_text()[-_LOG_TAIL:]}")


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


def _progress(problem: GemmProblem) -> OnProgress:
    """Tells the progress of a job on stderr, some lines in all."""
    console, shown = Console(stderr=True, highlight=False), set[int]()

    def show(news: wire.JobProgress) -> None:
        step = news.measured * _LOG_STEPS // max(1, news.planned)
        if step not in shown and news.best_us:
            shown.add(step)
            count = f"{news.measured:>4} of {news.planned}, {news.elapsed_s:.0f} s"
            console.print(f"            {count}, best {speed(problem, news.best_us)}", soft_wrap=True)

    return show


_SEARCH_S = 60.0
_VERDICTS = {
    "kernel": "the tuned kernel is faster than {vendor}",
    "vendor": "{vendor} is faster here",
    "tie": "the race shows no difference to {vendor}",
    "disturbed": "the race settles nothing, as {disturbed}",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Demo:
    """The steps of the demo; each prints a line of results and raises if something is off."""

    client: Client
    device: wire.DeviceView
    out: Console

    def say(self, label: str, text: str) -> None:
        """A line of results."""
        self.out.print(f"{label:<12}{text}", soft_wrap=True)

    def tune(self, problem: GemmProblem, max_trials: int) -> wire.BestConfigView:
        """Tune through ``POST /tune`` and show the winner.

        Raises:
            DemoFailed: there is no winner.
        """
        self.say("tune", f"POST /tune {problem}: {max_trials} configs, {_SEARCH_S:.0f} s of search at most")
        job = self.client.tune(
            problem, on_progress=_progress(problem), max_trials=max_trials, max_seconds=_SEARCH_S
        )
        if job.best is None or job.progress is None:
            raise DemoFailed(f"job {job.id} ended {job.status} without a winner; run the demo again")
        progress = job.progress
        self.say(
            "searched",
            f"{progress.measured} of {progress.valid_configs:,} valid configs measured (stopped: "
            f"{progress.stopped}), {progress.failed} failed, {progress.elapsed_s:.0f} s with the race",
        )
        self._show(problem, job.best)
        return job.best

    def look_up(self, tuned: wire.BestConfigView) -> None:
        """Ask ``GET /best-config`` for the architecture.

        Raises:
            DemoFailed: it does not give the winner.
        """
        found = self.client.configs(arch=tuned.arch)
        if [item.artifact.digest for item in found] != [tuned.artifact.digest]:
            raise DemoFailed(f"GET /best-config?arch={tuned.arch} does not give the winner of the job")
        self.say("stored", f"GET /best-config?arch={tuned.arch}: kernel {tuned.artifact.digest[:16]}")

    def run(self, problem: GemmProblem, tuned: wire.BestConfigView) -> None:
        """Run the problem on the service and check the result against float64.

        Raises:
            DemoFailed: it is wrong.
        """
        report = checked_gemm(self.client, problem)
        if report["verdict"] != "right":
            raise DemoFailed(f"POST /gemm: the result of {report['ran']} is wrong: {report['error_ratio']}")
        ran = "the tuned kernel" if report["ran"] == str(tuned.config) else report["ran"]
        self.say(
            "run",
            f"POST /gemm, one launch by {ran}: {speed(problem, report['kernel_us'])}, agrees with float64 "
            f"(error {report['error_ratio']:.2f} of what rounding allows)",
        )

    def warn(self, tuned: wire.BestConfigView) -> None:
        """Say what a disturbed race means, and what to do."""
        if tuned.verdict != "disturbed":
            return
        served = f"{tuned.baseline.name}, the vendor library," if tuned.use_vendor else "the tuned kernel"
        self.say(
            "disturbed",
            f"other programs disturbed the race, so its times say little; the service runs {served} for this "
            f"problem. Run the demo again when {self.device.name} is idle",
        )

    def _show(self, problem: GemmProblem, best: wire.BestConfigView) -> None:
        timing, speedup, vendor = best.timing, best.speedup, best.baseline
        verdict = _VERDICTS[best.verdict].format(vendor=vendor.name, disturbed=timing.disturbed)
        if best.use_vendor:
            verdict += f"; the service runs {vendor.name} for this problem"
        interval = f"[{timing.low_us:.1f}, {timing.high_us:.1f}] us"
        self.say("winner", str(best.config))
        self.say("", f"{speed(problem, timing.median_us)}, {interval}")
        self.say("vendor", f"{speed(problem, vendor.median_us)}: {vendor.name} in the same race")
        self.say(
            "speed-up",
            f"{speedup.value:.3f} [{speedup.low:.3f}, {speedup.high:.3f}] at {speedup.confidence:.0%} "
            f"confidence: {verdict}",
        )


def main(
    max_trials: Annotated[int | None, typer.Option(help="Configs to measure.", min=1)] = None,
    extent: Annotated[int | None, typer.Option(help="m, n and k.", min=1)] = None,
    device: Annotated[str | None, typer.Option(help="host or cuda:0; a GPU if there is one.")] = None,
) -> None:
    """Tune a GEMM on this machine and show the result."""
    started = time.monotonic()
    out = Console(highlight=False, markup=False)
    try:
        with tempfile.TemporaryDirectory(prefix="tilewright-demo-") as folder:
            _demo(Path(folder), out, max_trials, extent, device)
    except TilewrightError as error:
        Console(stderr=True, highlight=False, markup=False).print(f"demo failed: {error}", soft_wrap=True)
        raise typer.Exit(1) from error
    out.print(f"{'stopped':<12}cleanly, after {time.monotonic() - started:.0f} s in all")


def _demo(
    folder: Path, out: Console, max_trials: int | None, extent: int | None, device_name: str | None
) -> None:
    with running_service(folder, device_name) as url, Client(url, timeout=60.0, cache_dir=folder) as client:
        device = client.devices()[0]
        if device.detail:
            raise DemoFailed(
                f"{device.name} is {device.detail}; stop that service, or choose another --device"
            )
        demo = Demo(client, device, out)
        demo.say("service", f"{url} on an empty SQLite database")
        demo.say("device", f"{device.name}: {device.model}, {device.device_class}")
        problem = _problem(device.kind, extent)
        tuned = demo.tune(problem, max_trials or (64 if device.kind == "cuda" else 48))
        demo.look_up(tuned)
        demo.run(problem, tuned)
        demo.warn(tuned)


def _problem(kind: str, extent: int | None) -> GemmProblem:
    if kind == "cuda":
        side = extent or 4096
        return GemmProblem(side, side, side, DType.FLOAT16, Layout.NT)
    side = extent or 1024
    return GemmProblem(side, side, side, DType.FLOAT32, Layout.NN)


if __name__ == "__main__":
    typer.run(main)
