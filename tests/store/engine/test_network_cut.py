"""A network that drops every packet, made of a network namespace: both ends of a connection notice."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

import psycopg
import pytest
from postgres_server import find_binaries, running

from tuner.store.engines.postgres_engine import ALIVE

HERE, THERE = "10.231.77.1", "10.231.77.2"
_HOLDS = """
import time
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from tuner.store.database import Store
store = Store.open({url!r})
try:
    with store.begin() as session:
        session.execute(text("SELECT * FROM apart.held FOR UPDATE"))
        print("held", flush=True)
        time.sleep(2)
        session.execute(text("SELECT 1"))
except OperationalError:
    print("noticed", flush=True)
"""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@pytest.fixture
def namespace() -> Iterator[str]:
    """A network namespace that reaches this one at ``HERE`` over the link ``NAME-a``."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and the package 'iproute2'")
    name = f"tw{os.getpid()}"
    near, far = f"{name}-a", f"{name}-b"
    try:
        _ip("netns", "add", name)
    except subprocess.CalledProcessError:
        pytest.skip("this machine allows no network namespace")
    try:
        _ip("link", "add", near, "type", "veth", "peer", "name", far)
        _ip("link", "set", far, "netns", name)
        _ip("addr", "add", f"{HERE}/24", "dev", near)
        _ip("link", "set", near, "up")
        _ip("-n", name, "addr", "add", f"{THERE}/24", "dev", far)
        _ip("-n", name, "link", "set", far, "up")
        yield name
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", near)
        _ip("netns", "del", name)


@pytest.mark.long
def test_a_node_that_is_cut_off_holds_no_lock_for_long(namespace: str) -> None:
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL here: install the package 'postgresql'")
    bound_s = ALIVE["tcp_user_timeout"] / 1e3 + 20.0
    with running(binaries, also=HERE) as server, psycopg.connect(server.dsn, autocommit=True) as here:
        here.execute("CREATE SCHEMA apart; CREATE TABLE apart.held AS SELECT 1 AS id")
        url = server.url("postgres").replace("127.0.0.1", HERE)
        command = ["ip", "netns", "exec", namespace, sys.executable, "-c", _HOLDS.format(url=url)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
            assert node.stdout is not None
            assert node.stdout.readline() == "held\n"
            _ip("link", "set", f"{namespace}-a", "down")
            started = time.monotonic()
            here.execute("SELECT * FROM apart.held FOR UPDATE")
            assert time.monotonic() - started < bound_s
            assert node.stdout.readline() == "noticed\n"
            assert time.monotonic() - started < bound_s
