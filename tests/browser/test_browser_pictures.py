"""Pictures of all views, light and dark; ``make pictures`` puts them into ``docs/pictures``."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from api_server import Server
from browser import drawn, prefer, resize
from selenium import webdriver

WIDTH, MOST = 1280, 1100


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_has_a_picture(
    window: webdriver.Chrome, full: Server, views: dict[str, str], scheme: str, tmp_path: Path
) -> None:
    folder = Path(os.environ.get("PICTURES", tmp_path))
    prefer(window, scheme)
    for name, path in views.items():
        resize(window, WIDTH)
        window.get(full.url + path)
        drawn(window)
        height = window.execute_script("return document.documentElement.scrollHeight")
        resize(window, WIDTH, min(MOST, max(500, height)))
        drawn(window)
        picture = window.get_screenshot_as_png()
        (folder / f"{name}-{scheme}.png").write_bytes(picture)
        assert struct.unpack(">II", picture[16:24])[0] == WIDTH, name
        assert len(picture) > 10_000, name
    prefer(window, "light")
    resize(window, WIDTH)
