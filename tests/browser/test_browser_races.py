"""A result of a GPU as it was recorded: both sides of its races are drawn, with clock and power."""

from __future__ import annotations

import pytest
from api_server import Server
from browser import drawn
from selenium import webdriver


@pytest.mark.long
def test_both_sides_of_a_race_are_drawn(
    window: webdriver.Chrome, full: Server, views: dict[str, str]
) -> None:
    window.get(full.url + views["result"])
    drawn(window)
    script = "return JSON.parse(document.querySelector('figure script').textContent)"
    chart = window.execute_script(script)
    names = {row[2] for row in chart["rows"]}
    assert names == {f"{of}, {race}" for of in ("winner", "cublaslt") for race in ("head-to-head", "final")}
    assert all(row[3] > 1000 and row[4] > 100 for row in chart["rows"]), "MHz and watts"
    assert "keeps no samples" not in window.page_source
    said = window.execute_script("return document.querySelector('.facts').innerText")
    assert "Launches apart" in said, "which explains a speed-up below the ratio of the two medians"
