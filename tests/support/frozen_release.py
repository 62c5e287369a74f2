"""The database of the release of 2026-11-23, made by ``tests/store/frozen/make.py`` of commit ef042cf."""

from __future__ import annotations

import gzip
from pathlib import Path

import psycopg
from sqlalchemy import make_url

from tilewright.schema.problem import GemmProblem

FOLDER = Path(__file__).parents[1] / "store" / "frozen"
H200 = "sm_90-132sm-150gb-700w"
H100 = "sm_90-114sm-86gb-350w"
ONE_ROW = GemmProblem(1, 4096, 4096)
FEW_ROWS = GemmProblem(8, 4096, 4096)
SQUARE = GemmProblem(4096, 4096, 4096)
STREAM_K = GemmProblem(16, 6144, 4096)


def content(suffix: str) -> bytes:
    """One of the files: ``db``, ``sql`` or ``ndjson``."""
    return gzip.decompress((FOLDER / f"6fe203e.{suffix}.gz").read_bytes())


def fill(empty_url: str) -> None:
    """Make an empty database the frozen one."""
    url = make_url(empty_url)
    if url.drivername == "sqlite":
        Path(str(url.database)).write_bytes(content("db"))
        return
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain) as connection:
        connection.execute(content("sql"))
