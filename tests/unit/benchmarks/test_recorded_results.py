"""Recorded results and spaces are in today's words: their configs are configs of today's families."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.recorded_suite import load_rows
from benchmarks.common.results import RESULTS
from kernels.registry import FAMILIES, RENAMED, completed
from tilewright.schema.config import Config
from tuner.replay.formats import from_t4, read_space, to_t4

SPACES = sorted((RESULTS.parent / "spaces").glob("*.t4.json.gz"))
FILES = sorted(RESULTS.glob("*.json"))
# Knobs that recorded files have and their family of today lacks.
NOT_TODAY = {
    "wgmma": {"in_flight", "l2_promotion"},
    "gemv_tma": {"split_k"},
    "gemv": {"warp_tiles", "warps_rows"},
}
_TEXT = re.compile(r"\b(\w+)\((\w+=[^()]*)\)")


def configs(data: Any) -> Iterator[Config]:
    """Every config of a parsed file: as JSON, beside the name of its family, or as text."""
    if isinstance(data, dict):
        knobs = data.get("knobs", data.get("config"))
        if "family" in data and isinstance(knobs, dict) and "library" not in knobs:
            yield Config.of(data["family"], knobs)
        for value in data.values():
            yield from configs(value)
    elif isinstance(data, list):
        for value in data:
            yield from configs(value)
    elif isinstance(data, str):
        for family, knobs in _TEXT.findall(data):
            pairs = (pair.split("=") for pair in knobs.split(", "))
            yield Config.of(family, {name: int(text) if text.isdecimal() else text for name, text in pairs})


def test_no_file_is_overlooked() -> None:
    found = {path.name: list(configs(json.loads(path.read_text()))) for path in FILES}
    kinds = {name.split("-")[0] for name, several in found.items() if several}
    assert kinds - {"model", "unseen"} == {"fleet", "ladder", "live", "mlp", "replay", "sanitizer", "suite"}
    assert sum(map(len, found.values())) > 700


# The kernels of files that another tuner recorded.
OTHERS = {"Xgemm", "convolution_kernel", "dedispersion_kernel", "cn_pnpoly"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_recorded_configs_are_of_today(path: Path) -> None:
    for config in configs(json.loads(path.read_text())):
        assert config.family not in RENAMED
        if config.family not in FAMILIES:
            assert config.family in OTHERS
            continue
        knobs = {knob.name: knob for knob in FAMILIES[config.family].knobs}
        gone = NOT_TODAY.get(config.family, set())
        recorded = {name: value for name, value in config.knobs if name not in gone}
        assert all(value in knobs[name].legal for name, value in recorded.items())
        since = {name: knob.absent for name, knob in knobs.items() if name not in recorded}
        removed = FAMILIES[config.family].removed.items()
        used = any(dict(config.knobs).get(name, value) != value for name, value in removed)
        assert dict(completed(config).knobs) == recorded | since or used
        assert None not in since.values()


@pytest.mark.parametrize("path", sorted(RESULTS.glob("suite-sm*[a-z0-9].json")), ids=lambda path: path.name)
def test_rows_of_the_suite_load(path: Path) -> None:
    if path.name.endswith((".provenance.json", ".tuning.json")):
        return
    rows = load_rows(path)
    assert len(rows) > 10
    assert {row.family for row in rows} <= FAMILIES.keys()


@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.name)
def test_recorded_spaces_are_of_today(path: Path) -> None:
    space = read_space(path)
    legal = {knob.name: knob.legal for knob in FAMILIES[space.family].knobs}
    gone = NOT_TODAY.get(space.family, set())
    recorded = {knob.name for knob in space.knobs}
    assert recorded & gone in (set(), gone)  # recorded after they went, or before
    assert recorded <= legal.keys() | gone
    assert all(knob.absent is not None for knob in FAMILIES[space.family].knobs if knob.name not in recorded)
    assert all(set(knob.values) <= set(legal[knob.name]) for knob in space.knobs if knob.name not in gone)


def test_a_space_of_an_earlier_release_reads_as_the_same() -> None:
    space = read_space(SPACES[0])
    text = json.dumps(to_t4(space)).replace('"swizzle_size"', '"group"').replace('"sm_count"', '"units"')
    before = from_t4(json.loads(text.replace('"min_ctas_per_sm"', '"min_blocks"')), space.name)
    assert (before.knobs, before.device) == (space.knobs, space.device)
    assert before.entries == space.entries
