"""The client of an earlier release with the service of today, and the reverse.

``8332e9c`` is the first release whose API is kept: config sets are signed from then on, and requests have
today's names. Its archive, without the CUDA sources:

    git archive 8332e9c client/tilewright kernels migrations service tuner ':!*.cu' ':!*.cuh' | xz -9e
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from api_server import Server, admin_key, environment, finish, start
from frozen_release import FOLDER

import tilewright
from tuner.store.database import Store

CALLS = Path(__file__).parents[2] / "support" / "servers" / "release_calls.py"
TODAY = Path(tilewright.__file__).parents[1]


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the earlier release."""
    folder = tmp_path_factory.mktemp("release")
    with tarfile.open(FOLDER / "8332e9c.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def under(release: Path) -> list[str]:
    """A command that runs another with the sources of the release in place of today's."""
    return ["env", f"--chdir={release}", f"PYTHONPATH={release}:{release / 'client'}"]


def run(release: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line of the release on the database in a folder."""
    command = [*under(release), sys.executable, "-m", "service.cli.main", *arguments]
    return subprocess.run(command, env=environment(folder), capture_output=True, text=True, timeout=60)


@pytest.fixture
def earlier(release: Path, tmp_path: Path) -> Iterator[Server]:
    """A service of the earlier release."""
    server = start(tmp_path, *under(release))
    yield server
    finish(server)


@pytest.fixture
def today(tmp_path: Path) -> Iterator[Server]:
    server = start(tmp_path)
    yield server
    finish(server)


def called(client: Path, server: Server, key: str) -> dict[str, object]:
    """What the calls of a user's program found, made with the client in a folder."""
    ran = subprocess.run(
        [sys.executable, str(CALLS), server.url, key],
        env=os.environ | {"PYTHONPATH": str(client), "XDG_CACHE_HOME": str(server.folder / "cache")},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, object] = json.loads(ran.stdout)
    assert Path(str(found["client"])).is_relative_to(client)
    return found


@pytest.mark.long
def test_the_earlier_client_works_with_the_service_of_today(release: Path, today: Server) -> None:
    assert called(release / "client", today, admin_key(today))["lines"]


@pytest.mark.long
def test_the_client_of_today_works_with_the_earlier_service(release: Path, earlier: Server) -> None:
    key = run(release, earlier.folder, "keys", "create", "test", "--scope", "admin")
    assert called(TODAY, earlier, key.stdout.split()[-1])["lines"]


@pytest.mark.long
def test_the_earlier_service_refuses_a_database_of_today(release: Path, tmp_path: Path) -> None:
    with closing(Store.open(environment(tmp_path)["TILEWRIGHT_DATABASE_URL"])) as store:
        store.migrate()
    refused = run(release, tmp_path, "serve")
    assert refused.returncode != 0
    assert "newer" in refused.stderr + refused.stdout
