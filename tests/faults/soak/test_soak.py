"""A short form of the hour of mixed load in `make soak`: every answer is as its request must get it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.service import soak


@pytest.mark.long
def test_a_service_under_mixed_load_gives_the_answers_it_must(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "soak.json"
    options = ["--minutes", "0.15", "--row", "3", "--rate", "60", "--trials", "400", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["soak", *options])
    with pytest.raises(SystemExit) as ended:
        soak.main()
    found = json.loads(out.read_text())
    assert (found["unexpected"], found["faults"], ended.value.code) == ([], [], 0)
    assert [set(row) >= {"rss_mb", "fds", "threads", "children"} for row in found["rows"]] == [True] * 3
    assert found["rows"][-1]["rss_mb"] > 20
    kinds = {name.partition(":")[0] for name in found["asked"]}
    assert {"visit", "known config set", "tune", "lookup exact"} <= kinds
    assert "faults" in json.loads(capsys.readouterr().out)
