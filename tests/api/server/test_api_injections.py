"""Text that means something to a file system, a database, a header or a spreadsheet, to every GET route."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from api_server import Server
from sweeps import every

from tilewright import wire

CANARY = "tw1njected"  # in each text, so that it is seen where it comes back
CORPUS = {
    "path": f"../../../../etc/passwd#{CANARY}",
    "path of Windows": f"..\\..\\{CANARY}",
    "path encoded": f"..%2f..%2fetc%2fpasswd%00{CANARY}",
    "sql condition": f"' OR '1'='1' -- {CANARY}",
    "sql union": f'" UNION SELECT key FROM api_keys -- {CANARY}',
    "sql statement": f"x'); DROP TABLE jobs; -- {CANARY}",
    "header": f"x\r\nX-{CANARY}: yes\r\nSet-Cookie: a={CANARY}",
    "header in low bytes": f"x\u560d\u560aSet-Cookie:a={CANARY}",
    "csv formula": f'=HYPERLINK("http://127.0.0.1/?{CANARY}")',
    "csv command": f"@SUM(1)*cmd|' /C calc'!A0{CANARY}",
    "unicode digits": f"\u0661\u0662{CANARY}",
    "markup": f"<script>{CANARY}</script>",
    "zero byte": f"{CANARY}\0",
    "long": CANARY * 500,
}
DIGITS = ["\u0661\u0662", "\u06f1\u06f2", "\u0967\u0968", "\uff11\uff12", "\u00b9\u00b2", "\u216b"]
FILTERS = {"device_class", "arch", "family"}  # text that a query compares with what is stored
PLACEHOLDERS = {
    "digest": "0" * 64,
    "import_id": "0" * 32,
    "a": "sha256:" + "0" * 64,
    "b": "sha256:" + "0" * 64,
}
REQUEST_ID = {"name": "x-request-id", "in": "header"}  # sent to routes that have no parameters

Parameter = dict[str, Any]


@pytest.fixture(scope="module")
def routes(http: httpx2.Client) -> dict[str, list[Parameter]]:
    """The parameters of each path that answers GET."""
    paths = http.get("/openapi.json").json()["paths"]
    return {path: item["get"].get("parameters", []) for path, item in paths.items() if "get" in item}


def filled(path: str, job: wire.JobView, name: str = "", text: str = "") -> str:
    """A path with one parameter that is a text, and with valid ones for the others."""
    given = {**PLACEHOLDERS, "job_id": job.id, name: quote(text, safe="")}
    return re.sub(r"\{(\w+)\}", lambda match: given[match[1]], path)


def header(text: str) -> bytes:
    """What of a text a header can hold."""
    return re.sub(r"[\r\n\0]+", "|", text).encode()


def sent(
    http: httpx2.Client, routes: dict[str, list[Parameter]], job: wire.JobView, text: str
) -> Iterator[tuple[str, str, httpx2.Response]]:
    """The path, the parameter and the answer of a request for each parameter, which is ``text``."""
    for path, parameters in routes.items():
        plain = filled(path, job)
        for name, kind in ((one["name"], one["in"]) for one in parameters or [REQUEST_ID]):
            if kind == "path":
                yield path, name, http.get(filled(path, job, name, text))
            elif kind == "query":
                yield path, name, http.get(plain, params={name: text})
            else:
                yield path, name, http.get(plain, headers={name: header(text)})


def in_headers(answer: httpx2.Response) -> list[tuple[str, str]]:
    """The headers of an answer that hold what was sent."""
    return [one for one in answer.headers.items() if CANARY in "".join(one).lower() or one[0] == "set-cookie"]


@pytest.mark.parametrize("kind", every(4, CORPUS))
def test_text_is_only_text_to_every_get_route(
    server: Server, tuned: wire.JobView, http: httpx2.Client, routes: dict[str, list[Parameter]], kind: str
) -> None:
    answers = list(sent(http, routes, tuned, CORPUS[kind]))
    assert len(answers) > 2 * len(routes)
    assert tuned.id in http.get("/trials", params={"device_class": tuned.device_class}).text
    for path, name, answer in answers:
        where = f"{name} of {path}: {answer.status_code} {answer.text[:300]}"
        assert answer.status_code < 500, where
        assert in_headers(answer) == [], where
        assert "root:" not in answer.text, where
        assert "html" not in answer.headers.get("content-type", ""), where
        if name in FILTERS:
            assert tuned.id not in answer.text, where
    assert http.get(f"/jobs/{tuned.id}").json()["status"] == "succeeded"
    lines = server.log().splitlines(keepends=True)
    assert all(isinstance(json.loads(line), dict) for line in lines if line.endswith("\n"))


@pytest.mark.parametrize("digits", DIGITS)
def test_digits_of_other_scripts_are_no_numbers(
    tuned: wire.JobView, http: httpx2.Client, routes: dict[str, list[Parameter]], digits: str
) -> None:
    seen = 0
    for path, parameters in routes.items():
        for one in parameters:
            if one["in"] == "query" and "integer" in json.dumps(one["schema"]):
                answer = http.get(filled(path, tuned), params={one["name"]: digits})
                assert answer.status_code == 422, f"{one['name']} of {path}: {answer.text[:300]}"
                seen += 1
    assert seen > 8
