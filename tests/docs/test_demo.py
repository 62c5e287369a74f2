"""``make demo`` with a small budget: the whole main job in one process tree."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import subprocess
import sys
import types
from typing import Any, cast

import pytest
import store_samples
from rich.console import Console

from service.cli.demo import Demo
from tilewright import wire
from tilewright.schema.trial import BestConfig


@pytest.mark.long
def test_the_demo_goes_through_every_step() -> None:
    done = _demo("--device", "host", "--extent", "96", "--max-trials", "4")
    assert done.returncode == 0, done.stdout + done.stderr
    labels = [line.split()[0] for line in done.stdout.splitlines() if not line.startswith(" ")]
    steps = ["service", "device", "tune", "searched", "winner", "vendor", "speed-up", "stored", "run"]
    assert labels == [*steps, *(["disturbed"] if "disturbed" in labels else []), "stopped"]
    assert re.search(
        r"^searched +4 of [0-9,]+ valid configs measured \(stopped: budget spent\)", done.stdout, re.MULTILINE
    )
    assert re.search(
        r"^speed-up +[0-9.]+ \[[0-9.]+, [0-9.]+\] at 99% confidence: ", done.stdout, re.MULTILINE
    )
    assert re.search(r"4 of 4, .*GFLOP/s", done.stderr)


@pytest.mark.long
def test_the_demo_fails_where_it_cannot_be_right() -> None:
    done = _demo("--device", "cuda:99")
    assert done.returncode == 1
    assert "demo failed: the service did not start" in done.stderr
    assert "cuda:99" in done.stderr
    assert "stopped" not in done.stdout


@pytest.mark.parametrize(
    ("detail", "served"),
    [({}, "numpy, the vendor library,"), ({"stands_in_for": "float16"}, "the tuned kernel")],
)
def test_a_busy_machine_is_named_and_what_is_served_there(detail: dict[str, Any], served: str) -> None:
    out = io.StringIO()
    nothing, device = cast(Any, None), cast(Any, types.SimpleNamespace(name="host"))
    demo = Demo(nothing, device, Console(file=out, width=1000))
    demo.warn(_view(store_samples.best(store_samples.problem())))
    assert out.getvalue() == "", "nothing disturbed this race"
    won = store_samples.best(store_samples.problem(), disturbed="other programs used 90% of the cores")
    demo.warn(_view(dataclasses.replace(won, baseline=dataclasses.replace(won.baseline, detail=detail))))
    assert out.getvalue() == (
        "disturbed   other programs disturbed the race, so its times say little; the service runs "
        f"{served} for this problem. Run the demo again when host is idle\n"
    )


def _view(won: BestConfig) -> wire.BestConfigView:
    return wire.BestConfigView.of(won, wire.QualityView(), created=store_samples.ENTERED)


def _demo(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "service.cli.demo", *options]
    busy = os.environ | {"TILEWRIGHT_QUIET_WAIT_S": "0"}  # as other tests run beside it
    return subprocess.run(command, env=busy, capture_output=True, text=True, timeout=240, check=False)
