"""One request of every kind that callers send to a service, each with the status that it must get."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.service.lookup_fill import ARCH, CLASS, Filled
from tilewright import GemmProblem

PROBLEMS_MISSED = 200  # the list of misses grows to so many
SIDE = 48  # of a GEMM's matrices
JSON = {"Content-Type": "application/json"}
RAW = {"Content-Type": "application/octet-stream"}


class Request(NamedTuple):
    """A request, and the statuses that it may be answered with."""

    name: str
    method: str
    path: str
    wanted: tuple[int, ...]
    options: dict[str, Any]


def request(name: str, call: str, *wanted: int, **options: Any) -> Request:
    """``call`` is ``GET /path``; 200 is wanted unless other statuses are given; ``options`` are httpx2's."""
    method, _, path = call.partition(" ")
    return Request(name, method, path, wanted or (200,), options)


def every_kind(filled: Filled, chance: random.Random, host: str, job: str) -> list[Request]:
    """Requests in the order of chance: most are lookups, of the rest one or two of a kind.

    ``host`` is the class of the device here, ``job`` a job that there is.
    """
    found = [
        *lookups(filled, chance, host),
        *tuning(chance, job),
        *results(filled, chance, host, job),
        *broken(),
    ]
    chance.shuffle(found)
    return found


def lookups(filled: Filled, chance: random.Random, host: str) -> Iterator[Request]:
    """Exact, nearest, many at once, of what is tuned and what is not."""
    for one in chance.choices(filled.problems, k=30):
        yield request("lookup exact", "GET /best-config", params={"arch": ARCH, **extents(one)})
    for one in chance.choices(filled.problems, k=10):
        # NOTE: the same again and again, so that the cache of answers is full within minutes.
        near = extents(one) | {"m": one.m + 1 + one.n // 64 % 63, "match": "nearest"}
        yield request("lookup nearest", "GET /best-config", params={"arch": ARCH, **near})
    for _ in range(2):
        some = [extents(one) for one in chance.choices(filled.problems, k=50)]
        body = {"device_class": CLASS, "problems": some}
        yield request("lookup many", "POST /best-config/lookup", json=body)
    yield request("lookup of a miss", "GET /best-config", 404, params={"arch": ARCH, **_missed(chance)})
    yield request("list winners", "GET /best-config", params={"device_class": host})


def tuning(chance: random.Random, job: str) -> Iterator[Request]:
    """Jobs, misses and GEMMs."""
    body = {"device_class": CLASS, "misses": [_missed(chance)]}
    yield request("misses", "POST /misses", 202, json=body)
    yield request("list misses", "GET /misses")
    yield request("jobs", "GET /jobs", params={"limit": chance.choice((5, 50, 200))})
    yield request("job", f"GET /jobs/{job}")
    yield request("trials of a job", f"GET /jobs/{job}/trials")
    product = {"m": SIDE, "n": SIDE, "k": SIDE, "dtype": "float32"}
    for _ in range(2):
        yield request("gemm", "POST /gemm", params=product, content=bytes(8 * SIDE * SIDE), headers=RAW)


def results(filled: Filled, chance: random.Random, host: str, job: str) -> Iterator[Request]:
    """Exports, kernels, pages and what monitoring asks."""
    kind = chance.choice(("ndjson", "t4"))
    yield request("export", "GET /trials", params={"device_class": host, "format": kind})
    yield request("kernel", f"GET /artifacts/{chance.choice(filled.digests)}")
    won = {"arch": ARCH, **extents(chance.choice(filled.problems))}
    yield request("explain", "GET /explain", params=won)
    for name in ("metrics", "health/ready", "devices"):
        yield request(name, f"GET /{name}")
    views = ("now", "jobs", f"jobs/{job}", "results", "coverage", "report")
    for page in ("/", *(f"/view/{name}" for name in chance.sample(views, 2))):
        yield request("page", f"GET {page}")


def broken() -> Iterator[Request]:
    """Requests that are refused."""
    yield request("broken JSON", "POST /tune", 422, content=b'{"m": 1', headers=JSON)
    yield request("unknown field", "POST /tune", 422, json={"m": 8, "n": 8, "k": 8, "colour": "red"})
    yield request("long body", "POST /tune", 413, content=b" " * 70_000, headers=JSON)
    yield request("unknown job", f"GET /jobs/{'0' * 32}", 404)
    yield request("unknown path", "GET /nowhere", 404)
    yield request("wrong method", "PUT /tune", 405)


def extents(problem: GemmProblem) -> dict[str, Any]:
    """The fields that name one of the filled problems."""
    return {"m": problem.m, "n": problem.n, "k": problem.k}


def _missed(chance: random.Random) -> dict[str, int]:
    return {"m": 8 * chance.randint(1, PROBLEMS_MISSED), "n": 136, "k": 72}
