"""The docs name everything there is, name nothing that is not, and their commands run."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from api_server import finish, start

from kernels.knob_tables import with_tables
from kernels.registry import FAMILIES
from service.cli import main
from service.engine import canary, device_queue
from service.errors import Kind
from service.server.app import create_app
from service.settings import Settings
from tilewright import Client, wire
from tilewright.schema.job import QUICK_TRIALS
from tilewright.schema.trial import Outcome
from tilewright.wire.requests import TuneBody
from tuner.job import selection, shortlist
from tuner.measure import interleave, operands, race, timing, vendor
from tuner.measure.between_races import BETWEEN_RACES
from tuner.measure.stats import BEHIND, CONFIDENCE, PERIODS_MISLEAD
from tuner.store.faults import drift
from tuner.store.models import Base
from tuner.workers import bench, recovery

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
LOCAL = "http://127.0.0.1:8080"
LONG = [pytest.param(page, marks=pytest.mark.long) for page in (README, DOCS / "cli.md")]
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    return [README, *sorted(DOCS.glob("*.md"))]


def text(name: str) -> str:
    return (DOCS / name).read_text()


def links(page: Path) -> list[str]:
    """Targets of the links outside code blocks."""
    return re.findall(r"\]\(([^)\s]+)\)", _FENCE.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    """The anchors that headings give."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def rows(markdown: str) -> list[list[str]]:
    """The cells of every row of every table, headers included."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def commands(page: Path) -> list[str]:
    """What follows a ``$`` prompt in the code blocks, continued lines joined."""
    found: list[str] = []
    for block in _FENCE.findall(page.read_text()):
        found += re.findall(r"^\$ (.*)$", block.replace("\\\n", " "), re.MULTILINE)
    return found


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


_ARRAYS = """
import numpy as np, tilewright
tw = tilewright.Client("http://127.0.0.1:8080")
a, b, out, bias = np.ones((64, 64), "f4"), np.ones((64, 64), "f4"), np.ones((64, 64), "f4"), np.ones(64, "f4")
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = start(tmp_path_factory.mktemp("service"), shared_memory=True)
    yield server.url
    finish(server)


GENERATED = [ROOT / "benchmarks" / "results" / name for name in ("suite.md", "ladder.md", "search.md")]


@pytest.mark.parametrize("page", [*pages(), *GENERATED], ids=lambda page: page.name)
def test_links_resolve(page: Path) -> None:
    for link in links(page):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}"


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_a_page_starts_with_what_it_is_for(page: Path) -> None:
    first = "Start with" if page.name == "index.md" else "This page"
    assert page.read_text().split("\n\n")[1].startswith(first)


def test_the_index_has_every_page() -> None:
    assert {link for link in links(DOCS / "index.md") if not link.startswith("..")} == {
        page.name for page in DOCS.glob("*.md") if page.name != "index.md"
    }


def test_every_setting_is_described_and_no_other() -> None:
    described = [row[0].strip("`") for row in rows(text("settings.md"))[2:]]
    assert sorted(described) == sorted(f"TILEWRIGHT_{name.upper()}" for name in Settings.model_fields)


def test_every_variable_the_pages_name_is_a_setting() -> None:
    known = {f"TILEWRIGHT_{name.upper()}" for name in Settings.model_fields}
    named = {
        (page.name, name) for page in pages() for name in re.findall(r"TILEWRIGHT_\w+", page.read_text())
    }
    assert {(page, name) for page, name in named if name not in known | {"TILEWRIGHT_"}} == set()


def test_every_verb_is_described_and_prints_json() -> None:
    verbs = dict(_verbs(typer.main.get_command(main.app), "tilewright"))
    described = {re.match(r"`([a-z ]+)", row[0]) for row in rows(text("cli.md"))[2:]}
    assert {match[1].strip() for match in described if match} == verbs.keys()
    assert [
        name for name, command in verbs.items() if "as_json" not in {p.name for p in command.params}
    ] == []


def test_which_verbs_ask_a_service_is_described() -> None:
    found = re.search(r"^(`serve`.*?) need no service\. (.*?) ask one if", text("cli.md"), re.M | re.S)
    assert found, "cli.md has no list of verbs that need no service"
    alone, either = (set(re.findall(r"`(\w+)`", part)) for part in found.groups())
    options: dict[str, set[str]] = {}
    for name, command in _verbs(typer.main.get_command(main.app), "tilewright"):
        options.setdefault(name.split()[1], set()).update(p.name for p in command.params)
    assert alone == {verb for verb, names in options.items() if "url" not in names}
    assert either == {verb for verb, names in options.items() if {"url", "database_url"} <= names}


def test_every_route_is_described_and_no_other(tmp_path: Path) -> None:
    app = create_app(Settings(database_url=f"sqlite:///{tmp_path}/docs.db"))
    app.state.service.store.close()
    there = {f"{method.upper()} {path}" for path, item in app.openapi()["paths"].items() for method in item}
    first_cells = [row[0] for row in rows(text("api.md"))]
    assert {cell.strip("`") for cell in first_cells if re.match(r"`[A-Z]+ /", cell)} == there


def test_every_field_of_a_tune_is_described() -> None:
    described = {name for row in rows(text("api.md")) for name in re.findall(r"`(\w+)`", row[0])}
    assert set(TuneBody.model_fields) <= described


def test_every_kind_of_error_is_described_with_its_status() -> None:
    described = {
        (row[0].strip("`"), row[1]) for row in rows(text("api.md").split("## Errors")[1]) if row[1].isdigit()
    }
    assert described == {(kind.value[0], str(kind.status)) for kind in Kind}


def test_every_method_of_the_clients_is_described() -> None:
    page = text("api.md")
    public = [name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")]
    assert [name for name in public if name != "close" and f"{name}(" not in page] == []


def test_the_knob_tables_are_those_of_the_families() -> None:
    page = text("families.md")
    assert with_tables(page) == page, "run python -m kernels.knob_tables"
    described = {row[0].strip("`") for row in rows(page.split("\n## ")[0])}
    assert set(FAMILIES) <= described


def test_every_table_and_every_outcome_is_described() -> None:
    page = text("architecture.md")
    named = {row[0].strip("`") for row in rows(page)}
    assert set(Base.metadata.tables) - {"alembic_version"} <= named
    assert [outcome for outcome in Outcome if f"`{outcome}`" not in page] == []


def test_the_methods_of_measurement_are_the_ones_in_use() -> None:
    page = text("measurement.md")
    assert f"`{timing.METHOD}`" in page
    assert f"`{race.METHOD}`" in page
    assert f"`{race.METHOD_IN_BURSTS}`" in page
    assert f"{timing.PRUNE_RATIO - 1:.0%}".replace("%", " %") in page
    fewest = f"{timing.FEWEST_SAMPLES} (`quick`: {timing.FEWEST_OF_QUICK})"
    assert f"{fewest} to {timing.MOST_SAMPLES}" in page
    part = timing.FEWEST_OF_QUICK / timing.FEWEST_SAMPLES
    rests = f"{1e3 * timing.REST_S:g} ms of rest (`quick`: {1e3 * timing.REST_S * part:.0f})"
    assert f"bursts of {1e3 * timing.BURST_S:g} ms, each after {rests}" in page
    assert f"operand sets of twice the last-level cache, at most {operands._MOST_SETS}:" in page


def test_the_constants_of_the_races_are_those_of_the_code() -> None:
    page = " ".join(text("measurement.md").split())
    assert f"within {shortlist.WITHIN - 1:.0%} of the best".replace("%", " %") in page
    most, few = interleave.MOST_IN_A_RACE, interleave.MOST_AT_POWER_LIMIT
    assert f"at most {most} (where power may limit the device {few}, in a ladder 1)" in page
    near = f"{shortlist.SPARING_WITHIN - 1:.0%}".replace("%", " %")
    assert f"the second is the kernel within {near} that loads the fewest bytes" in page
    assert f"within {vendor._NEAR - 1:.0%} of its fastest".replace("%", " %") in page
    off = f"{race.BURSTS_TOO_HIGH - 1:.0%} further down and {race.BURSTS_TOO_LOW - 1:.1%} further up"
    assert f"reaches {off}".replace("%", " %") in page
    assert f"at most {selection.NEGLIGIBLE - 1:.1%} behind".replace("%", " %") in page
    stage = selection.HEAD_TO_HEAD
    assert f"{stage.fewest} to {stage.rules.rounds} rounds" in page
    assert (selection.FINAL.rules.passes, stage.rules.passes, interleave.PERIOD_S) == (1, 1, 1.0)
    off = f"{PERIODS_MISLEAD - 1:.1%}".replace("%", " %")
    assert f"such means lie within {off} of the true one" in page
    assert f"at the power limit {off} on both sides" in page
    assert f"by over {BEHIND:g} standard errors" in page
    assert f"measures {QUICK_TRIALS} trials at most" in page
    assert f"ends within about {selection.RACE_SECONDS:g} s" in page
    assert f"at {CONFIDENCE:.0%} confidence".replace("%", " %") in page
    apart = f"{BETWEEN_RACES - 1:.0%}".replace("%", " %")
    assert f"Two races of one kernel may differ by {apart}:" in page
    assert f"their intervals and {apart}," in " ".join((wire.SetChange.__doc__ or "").split())


def test_what_an_idle_device_measures_again_is_described() -> None:
    page = text("measurement.md")
    assert f"idle for {canary.IDLE_S / 60:g} minutes" in page
    assert f"the trials of {canary.WINNERS} winners again, {canary.TRIALS} each" in page
    assert f"of {canary.MOST_S:g} s or less" in page
    assert canary.SECOND_LOOK_S == 60
    assert [cause for cause in drift.Cause if f"`{cause}`" not in page] == []


def test_when_a_gpu_is_set_aside_is_described() -> None:
    page = text("architecture.md")
    assert f"NVML, {recovery._WAIT_S:g} s after" in page
    assert f"{recovery.SLACK_BYTES >> 20} MiB of memory" in page
    assert f"looked at every {device_queue._ASIDE_S:g} s" in page
    assert [cause for cause in bench._CRASHES if cause not in page] == []


def test_the_docs_stay_short() -> None:
    assert sum(len(page.read_text().split()) for page in pages()) <= 14_000


def test_readme_shows_the_make_targets() -> None:
    shown = {command.split()[1] for command in commands(README) if command.startswith("make ")}
    assert {"demo", "test", "serve"} <= shown


@pytest.mark.parametrize("page", [DOCS / "api.md", *LONG], ids=lambda page: page.name)
def test_commands_run_in_their_order(page: Path, url: str) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "TILEWRIGHT_URL": url, "TILEWRIGHT_QUIET_WAIT_S": "0"}
    for command in commands(page):
        if command.startswith("make "):
            _run(["make", "--dry-run", *command.split()[1:]], env)
        else:
            here = command.replace(".venv/bin/", "").replace(LOCAL, url)
            assert _run(["sh", "-c", here], env).stdout, f"{command} printed nothing"


@pytest.mark.long
@pytest.mark.parametrize("block", python_blocks(README))
def test_python_examples_run(block: str, url: str) -> None:
    assert LOCAL in block
    assert _run([sys.executable, "-c", block.replace(LOCAL, url)], os.environ).stdout


@pytest.mark.long
def test_python_examples_of_the_client_run(url: str, tmp_path: Path) -> None:
    """Those for NumPy, one after the other, on small arrays; tests/unit/client has those for torch."""
    blocks = [block for block in python_blocks(DOCS / "client.md") if "torch.use" not in block]
    assert len(blocks) == 2
    script = "\n".join([_ARRAYS, *blocks]).replace("4096", "64").replace("float16", "float32")
    here = script.replace("http://tuning.example:8080", url).replace(LOCAL, url)
    assert _run([sys.executable, "-c", here], {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}).stdout


def test_ci_is_make_test_all() -> None:
    script = ROOT / ".ci/run"
    _run(["bash", "-n", str(script)], os.environ)
    assert os.access(script, os.X_OK)
    assert script.read_text().rstrip().endswith("exec make test-all")
    plan = _run(["make", "--dry-run", "test-all"], os.environ).stdout
    checks = ("ruff check", "ruff format", "mypy", "lint-imports", "codespell")
    tests = ("-m 'not alone'", "pytest tests/fleet")
    assert [one for one in (*checks, *tests) if one not in plan] == []


def test_bills_of_materials_and_audits_cover_what_is_locked() -> None:
    plan = _run(["make", "--dry-run", "sbom", "audit"], os.environ).stdout
    assert [name for name in ("docker/requirements-$image.lock", "--of JSON") if name not in plan] == []
    assert [
        name for name in ("requirements.lock requirements-gpu.lock", "--strict") if name not in plan
    ] == []


def test_every_target_that_the_pages_name_is_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in pages() for name in re.findall(r"`make ([a-z-]+)", page.read_text())}
    assert named <= targets


def _verbs(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        yield from _verbs(command.get_command(context, name), f"{path} {name}")


def _run(command: list[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, env=dict(env), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done
