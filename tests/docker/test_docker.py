"""The images' steps as a script in a scratch folder, and what compose.yaml promises."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from image_steps import DOCKER, ROOT, environment, exec_form, is_sent, lay_out, pins, stages, wanted

from service.settings import Settings

IMAGES = ("cpu", "gpu")
EXTRAS = {
    "requirements.lock": {"compile", "postgres", "dev"},
    "requirements-gpu.lock": {"compile", "gpu", "postgres", "dev"},
    "requirements-fleet.lock": {"postgres", "fleet"},
    "docker/requirements-cpu.lock": {"postgres"},
    "docker/requirements-gpu.lock": {"compile", "gpu", "postgres"},
}
START_S = 30


@pytest.mark.parametrize("name", EXTRAS)
def test_lock_files_hold_hashes_and_no_address(name: str) -> None:
    text = (ROOT / name).read_text()
    entries = text.replace("\\\n", " ").splitlines()
    assert len(entries) > 30
    assert [entry for entry in entries if "==" not in entry or "--hash=sha256:" not in entry] == []
    assert "://" not in text
    assert "index-url" not in text


@pytest.mark.parametrize(("name", "extras"), EXTRAS.items())
def test_lock_files_have_all_that_the_projects_ask_for(name: str, extras: set[str]) -> None:
    locked = pins(ROOT / name)
    asked = wanted(extras)
    assert len(asked) > 15
    for requirement in asked:
        versions = [spec.removeprefix("==") for spec in locked.get(requirement.name.replace("_", "-"), ())]
        assert versions, f"{name} lacks {requirement}; run 'make lock'"
        assert all(requirement.specifier.contains(version) for version in versions), requirement


@pytest.mark.parametrize("image", IMAGES)
def test_images_use_the_tested_versions_without_development_tools(image: str) -> None:
    tested = pins(ROOT / ("requirements.lock" if image == "cpu" else "requirements-gpu.lock"))
    used = pins(DOCKER / f"requirements-{image}.lock")
    assert {name: versions for name, versions in used.items() if tested.get(name) != versions} == {}
    assert used.keys() & {"pytest", "mypy", "ruff", "hypothesis", "schemathesis", "hatchling"} == set()
    assert ("nvidia-cuda-nvrtc" in used) == (image == "gpu")


@pytest.mark.parametrize("image", IMAGES)
def test_every_source_that_an_image_copies_is_sent(image: str) -> None:
    steps = [step for stage in stages(DOCKER / f"Dockerfile.{image}") for step in stage]
    sources = [step.arguments[0] for step in steps if step.word == "COPY" and not step.from_stage]
    assert "kernels" in sources
    assert [name for name in sources if not (ROOT / name).exists() or not is_sent(name)] == []
    assert not is_sent("tests/docker/test_docker.py")
    assert not is_sent("kernels/__pycache__/build.pyc")


@pytest.mark.parametrize("image", IMAGES)
def test_images_are_rootless_and_carry_no_build_tools(image: str) -> None:
    packages, final = stages(DOCKER / f"Dockerfile.{image}")
    assert [step.text for step in final if step.word == "USER"] == ["10001"]
    runs = [step.text for step in [*packages, *final] if step.word == "RUN"]
    for command in runs:
        subprocess.run(["sh", "-n", "-c", command], check=True)
    installed = [
        run.split("--no-install-recommends")[1].split("&&")[0].split() for run in runs if "apt-get" in run
    ]
    assert installed == ([["gcc", "libc6-dev"]] if image == "cpu" else [])
    assert ["pip" in step.text for step in final if step.word == "RUN"].count(True) == 0
    named = {name for name in environment(final) if name.startswith("TILEWRIGHT_")}
    assert {name.removeprefix("TILEWRIGHT_").lower() for name in named} <= Settings.model_fields.keys()


@pytest.mark.long
def test_the_locked_packages_install_together() -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--dry-run",
        "--no-index",
        "--require-hashes",
    ]
    lock = DOCKER / "requirements-cpu.lock"
    done = subprocess.run([*command, "-r", str(lock)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.parametrize("image", IMAGES)
def test_the_image_starts_gets_healthy_and_stops(image: str, tmp_path: Path) -> None:
    final = stages(DOCKER / f"Dockerfile.{image}")[-1]
    lay_out(final, tmp_path, DOCKER / f"requirements-{image}.lock")
    home = tmp_path / "var/lib/tilewright"
    home.mkdir(parents=True)
    env = _inside(environment(final), tmp_path)
    _run_plain_steps(final, tmp_path, env)
    check = [part.replace("/opt", f"{tmp_path}/opt") for part in exec_form(final, "HEALTHCHECK")]
    assert not _passes(check, env), "the health check passes without a service"
    command = exec_form(final, "ENTRYPOINT") + exec_form(final, "CMD")
    with _running(command, env, home):
        end = time.monotonic() + START_S
        while not _passes(check, env):
            assert time.monotonic() < end, (home / "log").read_text()
            time.sleep(0.1)
        with urllib.request.urlopen(f"http://127.0.0.1:{env['TILEWRIGHT_PORT']}/devices") as answer:
            assert [device["name"] for device in json.load(answer)["items"]] == ["host"]
    assert (home / "tilewright.db").exists()


def test_compose_waits_for_a_healthy_database_and_publishes_on_loopback() -> None:
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    database, service = compose["services"]["database"], compose["services"]["service"]
    assert database["healthcheck"]["test"][:2] == ["CMD", "pg_isready"]
    assert service["depends_on"]["database"]["condition"] == "service_healthy"
    assert [port.split(":")[0] for port in service["ports"]] == ["127.0.0.1"]
    assert (DOCKER / service["build"]["context"] / service["build"]["dockerfile"]).exists()
    mounts = [mount.split(":")[0] for one in (database, service) for mount in one["volumes"]]
    assert sorted(mounts) == sorted(compose["volumes"])
    names = {name.removeprefix("TILEWRIGHT_").lower() for name in service["environment"]}
    assert names <= Settings.model_fields.keys()
    assert service["environment"]["TILEWRIGHT_DATABASE_URL"].startswith("postgresql+psycopg://")


def test_compose_for_gpus_changes_the_image_and_asks_for_devices() -> None:
    laid_over = yaml.safe_load((DOCKER / "compose.gpu.yaml").read_text())["services"]["service"]
    assert (ROOT / laid_over["build"]["dockerfile"]).exists()
    (device,) = laid_over["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]


@pytest.mark.parametrize("image", [*IMAGES, "fleet"])
def test_hadolint(image: str) -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    subprocess.run([hadolint, str(DOCKER / f"Dockerfile.{image}")], check=True)


def _inside(env: dict[str, str], scratch: Path) -> dict[str, str]:
    """The image's environment as seen in the scratch folder, on loopback and with the host as device."""
    moved = {
        name: value.replace("/opt/", f"{scratch}/opt/").replace("/var/lib/", f"{scratch}/var/lib/")
        for name, value in env.items()
    }
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    local = {"TILEWRIGHT_HOST": "127.0.0.1", "TILEWRIGHT_PORT": port, "TILEWRIGHT_DEVICES": "host"}
    return moved | local | {"HOME": f"{scratch}/var/lib/tilewright"}


def _run_plain_steps(stage: list, scratch: Path, env: dict[str, str]) -> None:
    """Execute the RUN steps that touch nothing but /opt."""
    runs = [step.text for step in stage if step.word == "RUN" and "useradd" not in step.text]
    assert runs
    for run in runs:
        subprocess.run(["sh", "-ec", run.replace("/opt/", f"{scratch}/opt/")], env=env, check=True)


def _passes(check: list[str], env: dict[str, str]) -> bool:
    return subprocess.run(_on_path(check, env), env=env, capture_output=True, check=False).returncode == 0


def _on_path(command: list[str], env: dict[str, str]) -> list[str]:
    program = shutil.which(command[0], path=env["PATH"])
    assert program, f"{command[0]} is not on the image's PATH"
    return [program, *command[1:]]


@contextlib.contextmanager
def _running(command: list[str], env: dict[str, str], home: Path) -> Iterator[None]:
    with (home / "log").open("w") as log:
        process = subprocess.Popen(_on_path(command, env), env=env, cwd=home, stdout=log, stderr=log)
    try:
        yield
        process.terminate()
        assert process.wait(20) == 0, (home / "log").read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
