"""The pages that show the API: they work without a network, and run no script but the service's own."""

from __future__ import annotations

import re
from urllib.parse import urljoin

import httpx2
import pytest


@pytest.mark.parametrize("page", ["/docs", "/redoc"])
def test_a_page_needs_nothing_from_elsewhere(http: httpx2.Client, page: str) -> None:
    answer = http.get(page)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "default-src 'none'" in policy
    assert not re.search(r"<script(?![^>]*\bsrc=)", answer.text), "a script in the page itself would not run"
    named = re.findall(r'(?:src|href|spec-url)="([^"]+)"', answer.text)
    assert len(named) >= 3
    for name in named:
        if name != "data:,":
            found = http.get(urljoin(page, name))
            assert found.status_code == 200, name
            assert name == "openapi.json" or found.headers["x-content-type-options"] == "nosniff"
            assert len(found.content) > 50


def test_the_script_of_the_page_shows_this_document(http: httpx2.Client) -> None:
    [url] = re.findall(r'url: "([^"]+)"', http.get("/docs/start.js").text)
    assert http.get(urljoin("/docs", url)).json()["info"]["title"] == "tilewright"
    assert b"SwaggerUIBundle" in http.get("/docs/swagger-ui-bundle.js").content
    assert http.get("/docs/..%2f__init__.py").status_code in (404, 422)
    assert http.get("/docs/core.py").status_code == 422
