"""The page's scripts and styles: vendored ones are what their makers published, and the wheel has all."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from service.web.assets import assets
from service.web.charts import Chart, Column

ROOT = Path(__file__).parents[3]
WEB = ROOT / "service" / "web"
MANIFEST = json.loads((WEB / "vendor" / "manifest.json").read_text())


def test_every_vendored_file_is_in_the_manifest() -> None:
    there = {path.name for path in (WEB / "vendor").iterdir()}
    licences = {entry["licence_file"] for entry in MANIFEST.values()}
    assert there == {"manifest.json", *MANIFEST, *licences}


@pytest.mark.parametrize("name", MANIFEST)
def test_a_vendored_file_is_what_was_published(name: str) -> None:
    entry = MANIFEST[name]
    assert hashlib.sha256((WEB / "vendor" / name).read_bytes()).hexdigest() == entry["sha256"]
    assert entry["package"]
    assert entry["version"]
    assert entry["licence"] in ("0BSD", "MIT", "Apache-2.0")
    assert len((WEB / "vendor" / entry["licence_file"]).read_text()) > 300


def test_the_wheel_has_templates_scripts_styles_and_licences() -> None:
    builder = WheelBuilder(str(ROOT))
    packed = {Path(one.distribution_path) for one in builder.recurse_included_files()}
    here = {path.relative_to(ROOT) for path in WEB.rglob("*") if path.suffix not in ("", ".pyc")}
    assert len(here) > 20
    assert here - packed == set()


def test_an_address_names_the_bytes() -> None:
    found = assets()
    assert {"page.css", "charts.js", "live.js", *MANIFEST} <= set(found)
    for asset in found.values():
        assert asset.url == f"/static/{hashlib.sha256(asset.data).hexdigest()[:16]}/{asset.name}"
        assert "eval(" not in asset.data.decode() or asset.name in MANIFEST


def test_csv_has_units_and_no_formulas() -> None:
    columns = (Column("problem", "problem"), Column("median", "median time", "µs"))
    chart = Chart("times", "bars", "Times", columns, [("=1+1", 2.5), ('a "b", c', None)])
    assert chart.csv == 'problem,median (µs)\r\n\'=1+1,2.5\r\n"a ""b"", c",\r\n'


def test_what_the_browser_draws_has_six_digits() -> None:
    chart = Chart("times", "bars", "Times", (Column("median", "median time", "µs"),), [(1.23456789,)])
    assert chart.plain["rows"] == [[1.23457]]
    assert chart.plain["columns"] == [{"name": "median", "heading": "median time, µs"}]
