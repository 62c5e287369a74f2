"""Every method of the clients, called with the plain values of Python and NumPy that a user would pass."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import inspect
import io
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from api_server import TUNED, Server, admin_key, finish, start

from tilewright import AsyncClient, Client, GemmProblem, wire
from tilewright.errors import DeviceUnavailable, InvalidProblem, ServiceError, TilewrightError
from tilewright.http.arguments import Miss
from tilewright.schema.job import Sampler
from tilewright.schema.problem import Activation, DType, Layout

NOBODY = "http://127.0.0.1:9"


@dataclasses.dataclass
class Known:
    """What a service has, and a folder to write to."""

    job: wire.JobView
    set_digest: str
    folder: Path
    key: str
    import_id: str

    @property
    def device_class(self) -> str:
        return self.job.device_class

    @property
    def artifact(self) -> str:
        assert self.job.best is not None
        return self.job.best.artifact.digest


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of these tests alone, as they pin and import."""
    running = start(tmp_path_factory.mktemp("values"), shared_memory=1)
    yield running
    finish(running)


@pytest.fixture(scope="module")
def known(sharing: Server, tmp_path_factory: pytest.TempPathFactory) -> Known:
    key = admin_key(sharing)
    with Client(sharing.url, key=key, timeout=60.0) as client:
        job = client.tune(TUNED, max_trials=2, seed=1)
        current = client.current_set(job.device_class)
        file = io.BytesIO()
        client.export(file)
        line = file.getvalue().splitlines()[0].replace(job.id.encode(), b"a" * 32)
        entered = client.import_results(io.BytesIO(line))
    assert current is not None
    assert entered.import_id is not None
    return Known(job, current.config_set.digest, tmp_path_factory.mktemp("files"), key, entered.import_id)


def numbered(**extents: Any) -> GemmProblem:
    """A problem given by NumPy's integers, and its types by text."""
    sizes = {"m": np.int64(24), "n": np.int32(16), "k": np.uint8(16)} | extents
    return GemmProblem(**sizes, dtype="float32", layout="nn", has_bias=np.bool_(False))


def eye(dtype: Any = "f4") -> Any:
    return np.eye(8).astype(dtype)


Call = Callable[[Any, Known], Any]
REMOTE: dict[str, list[Call]] = {
    "tune": [
        lambda tw, _: tw.tune(
            numbered(),
            max_trials=np.int64(1),
            max_seconds=np.float32(60),
            seed=np.uint8(3),
            families=("host",),
            sampler="random",
            device="host",
            min_gain_per_s=np.float64(0),
            idempotency_key=uuid.uuid4(),
            on_progress=print,
            on_waiting=print,
        ),
        lambda tw, _: tw.tune(
            numbered(k=17), families=(name for name in ["host"]), sampler=Sampler.TPE, max_trials=1
        ),
        lambda tw, _: tw.tune(numbered(k=18), families=np.array(["host"]), max_seconds=5, max_trials=1),
    ],
    "wait": [lambda tw, it: tw.wait(it.job.id), lambda tw, it: tw.wait(it.job.id, [].append)],
    "job": [lambda tw, it: tw.job(it.job.id), lambda tw, it: tw.job(uuid.UUID(it.job.id).hex)],
    "cancel": [lambda tw, it: tw.cancel(it.job.id)],
    "cancel_jobs": [
        lambda tw, _: tw.cancel_jobs(mine=True),
        lambda tw, _: tw.cancel_jobs(status="queued", m=np.int64(7), dtype="float32"),
    ],
    "jobs": [
        lambda tw, _: tw.jobs("succeeded"),
        lambda tw, _: tw.jobs(wire.JobStatus.QUEUED, limit=np.int64(3)),
        lambda tw, _: tw.jobs(status="failed", limit=1, cursor=None),
    ],
    "trials": [lambda tw, it: tw.trials(it.job.id, limit=np.int16(1))],
    "best_config": [
        lambda tw, it: tw.best_config(TUNED, device_class=it.device_class, match="nearest"),
        lambda tw, it: tw.best_config(
            TUNED,
            device_class=it.device_class,
            match=wire.Match.NEAREST,
            max_regret=np.float32(0.5),
            deterministic=np.bool_(False),
        ),
    ],
    "explain_result": [
        lambda tw, it: tw.explain_result(
            TUNED, device_class=it.device_class, match="nearest", max_regret=np.float32(0.5)
        )
    ],
    "report": [
        lambda tw, it: tw.report(it.folder / "report.html"),
        lambda tw, it: tw.report(str(it.folder / "class.html"), device_class=it.device_class),
    ],
    "config_list": [
        lambda tw, it: tw.config_list(device_class=it.device_class, layout="nn", limit=np.int64(1))
    ],
    "configs": [
        lambda tw, it: tw.configs(device_class=it.device_class, deterministic=False),
        lambda tw, _: tw.configs(
            arch="host", dtype=DType.FLOAT32, layout="nn", batch=np.int64(1), has_c=False
        ),
    ],
    "lookup_many": [
        lambda tw, it: tw.lookup_many((TUNED, numbered()), device_class=it.device_class),
        lambda tw, it: tw.lookup_many(
            (numbered(m=m) for m in np.arange(1, 300)),
            device_class=it.device_class,
            match=wire.Match.NEAREST,
            max_regret=1,
            deterministic=np.True_,
        ),
        lambda tw, it: tw.lookup_many([], device_class=it.device_class),
    ],
    "artifact": [lambda tw, it: tw.artifact(it.artifact)],
    "export": [
        lambda tw, _: tw.export(io.BytesIO()),
        lambda tw, it: tw.export(it.folder / "all.ndjson", format=wire.Format.NDJSON),
        lambda tw, it: tw.export(str(it.folder / "some.t4"), format="t4", family="host"),
        lambda tw, it: tw.export(
            it.folder / "some.ndjson",
            since=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
            artifacts=np.False_,
            device_class=it.device_class,
        ),
        lambda tw, it: tw.export(it.folder / "some.ndjson", since="2026-01-01T00:00:00Z"),
    ],
    "import_results": [
        lambda tw, it: tw.import_results(it.folder / "all.ndjson"),
        lambda tw, it: tw.import_results(str(it.folder / "some.t4"), "t4"),
        lambda tw, it: tw.import_results(io.BytesIO((it.folder / "some.t4").read_bytes()), wire.Format.T4),
    ],
    "trust": [lambda tw, _: tw.trust()],
    "audit": [lambda tw, _: tw.audit(limit=3)],
    "quarantine": [lambda tw, _: tw.quarantine(), lambda tw, it: tw.quarantine(it.device_class, limit=3)],
    "imports": [lambda tw, _: tw.imports(), lambda tw, _: tw.imports(limit=np.int64(3))],
    "get_import": [lambda tw, it: tw.get_import(it.import_id)],
    "current_set": [
        lambda tw, it: tw.current_set(it.device_class),
        lambda tw, it: tw.current_set(it.device_class, f'"{it.set_digest}"'),
    ],
    "config_set": [lambda tw, it: tw.config_set(it.set_digest)],
    "config_sets": [
        lambda tw, _: tw.config_sets(),
        lambda tw, it: tw.config_sets(it.device_class, limit=np.int64(2)),
    ],
    "diff": [lambda tw, it: tw.diff(it.set_digest, it.set_digest)],
    "pin": [lambda tw, it: tw.pin(it.device_class, it.set_digest)],
    "unpin": [lambda tw, it: tw.unpin(it.device_class)],
    "artifacts": [
        lambda tw, it: tw.artifacts(it.set_digest),
        lambda tw, it: tw.artifacts(it.set_digest, (digest for digest in [it.artifact])),
        lambda tw, it: tw.artifacts(it.set_digest, {it.artifact}),
        lambda tw, it: tw.artifacts(it.set_digest, []),
        lambda tw, it: tw.artifacts(it.set_digest, [it.artifact] * 1000),
    ],
    "report_misses": [
        lambda tw, it: tw.report_misses(
            it.device_class, (Miss(numbered(k=k), np.int64(2), np.float32(1.5)) for k in np.arange(1, 4))
        ),
        lambda tw, it: tw.report_misses(it.device_class, [Miss(numbered())], idempotency_key=uuid.uuid4()),
    ],
    "misses": [lambda tw, it: tw.misses(it.device_class, limit=np.int64(9)), lambda tw, _: tw.misses()],
    "tune_misses": [
        lambda tw, it: tw.tune_misses(
            it.device_class, np.int64(1), max_trials=np.int64(1), families=("host",), sampler="local"
        ),
        lambda tw, it: tw.tune_misses(
            it.device_class, 1, max_trials=1, sampler=Sampler.RANDOM, idempotency_key=uuid.uuid4()
        ),
    ],
    "gemm": [
        lambda tw, _: tw.gemm(eye(), eye(), alpha=np.float32(2), beta=0, activation=Activation.RELU),
        lambda tw, _: tw.gemm(eye(), eye(), None, np.ones(8, "f4"), device="host", match=wire.Match.EXACT),
        lambda tw, _: tw.gemm(eye(), eye(), transpose_a=np.True_, activation="relu", out_dtype=DType.FLOAT32),
        lambda tw, _: tw.gemm(eye("f8"), eye("f8"), shared=True, alpha=np.int64(2), activation="relu"),
        lambda tw, _: tw.gemm(eye(), eye(), shared=True, layout="tn", dtype="float32", device=None),
        lambda tw, _: tw.gemm(eye(), eye(), dtype="float32", acc_dtype=DType.FLOAT32, max_regret=1),
    ],
    "shared_empty": [
        lambda tw, _: tw.shared_empty((np.int64(2), 3), "float16"),
        lambda tw, _: tw.shared_empty([2, 3], np.float32),
        lambda tw, _: tw.shared_empty(np.int64(4), np.dtype("f8")),
        lambda tw, _: tw.shared_empty(np.zeros((2, 3)).shape, DType.BFLOAT16),
    ],
    "families": [lambda tw, _: tw.families()],
    "devices": [lambda tw, _: tw.devices()],
    "ready": [lambda tw, _: tw.ready()],
}
LOCAL: dict[str, list[Call]] = {
    "start": [
        lambda tw, _: tw.start(),
        lambda tw, _: tw.start("host"),
        lambda tw, _: tw.start(np.int64(-1)),
        lambda tw, _: tw.start(device=-1),
    ],
    "lookup": [
        lambda tw, _: tw.lookup(TUNED, "host"),
        lambda tw, _: tw.lookup(numbered(), device=np.int32(-1)),
    ],
    "explain": [
        lambda tw, _: tw.explain(
            np.ones((TUNED.m, TUNED.k), "f4"), np.ones((TUNED.k, TUNED.n), "f4"), beta=np.float32(0)
        )
    ],
    "refresh": [lambda tw, _: tw.refresh(np.float32(5.0)), lambda tw, _: tw.refresh(timeout=5)],
}


UNKNOWN: dict[str, list[Call]] = {
    "release_device": [lambda tw, _: tw.release_device("host")],
    "release_quarantined": [lambda tw, _: tw.release_quarantined(np.int64(999))],
    "delete_import": [lambda tw, _: tw.delete_import(uuid.uuid4().hex)],
    "delete_best": [
        lambda tw, it: tw.delete_best(numbered(m=999), device_class=it.device_class),
        lambda tw, _: tw.delete_best(problem=numbered(m=999), arch="sm_90"),
    ],
    "delete_problem": [lambda tw, _: tw.delete_problem(numbered(m=999))],
}


def cases(table: dict[str, list[Call]]) -> Any:
    return [
        pytest.param(call, id=f"{name}-{number}")
        for name, calls in table.items()
        for number, call in enumerate(calls)
    ]


@pytest.mark.parametrize("call", cases(REMOTE | LOCAL))
def test_the_client_takes_plain_values(sharing: Server, known: Known, call: Call) -> None:
    with Client(sharing.url, key=known.key, timeout=60, cache_dir=str(known.folder / "cache")) as tw:
        call(tw, known)


@pytest.mark.parametrize("call", cases(REMOTE))
def test_the_asynchronous_client_takes_the_same_values(sharing: Server, known: Known, call: Call) -> None:
    async def run() -> None:
        async with AsyncClient(sharing.url, key=known.key, timeout=60) as tw:
            result = call(tw, known)
            if inspect.isawaitable(result):
                await result

    asyncio.run(run())


@pytest.mark.parametrize("call", cases(UNKNOWN))
def test_what_is_not_there_is_not_deleted(sharing: Server, known: Known, call: Call) -> None:
    with Client(sharing.url, timeout=60, key=known.key) as tw, pytest.raises(ServiceError, match="404"):
        call(tw, known)


def test_no_method_is_left_out() -> None:
    public = {name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")}
    assert public == (REMOTE | LOCAL | UNKNOWN).keys() | {"close"}


OPTIONS: list[dict[str, Any]] = [
    {"cache_dir": "cache"},
    {"cache_dir": Path("cache")},
    {"cache_bytes": np.int64(2**30), "cache_days": np.float32(9)},
    {"cache_bytes": 1e9, "cache_days": 3},
    {"max_regret": np.float64(0.2), "deterministic": np.True_},
    {"max_regret": None, "offline": True},
    {"start_timeout": 1, "refresh_s": np.int32(60)},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_are_plain_values_too(
    sharing: Server, known: Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    with Client(sharing.url, key=known.key, **{"cache_dir": tmp_path} | options) as tw:
        found = tw.start("host").lookup(TUNED, "host")
        assert found.kind == "vendor" if options.get("offline") else found.entry is not None
    assert "cache_dir" not in options or (tmp_path / "cache" / "v1").is_dir()


def test_a_file_that_is_exported_to_by_its_path_is_replaced_at_the_end(
    sharing: Server, known: Known, tmp_path: Path
) -> None:
    file = tmp_path / "results.ndjson"
    with Client(sharing.url, key=known.key, timeout=60) as tw:
        assert tw.export(file, artifacts=False) == file.stat().st_size
        assert known.job.id in {json.loads(line).get("id") for line in file.read_bytes().splitlines()}
        assert tw.export("/dev/null", artifacts=False) == file.stat().st_size
    before = file.read_bytes()
    with Client(NOBODY) as tw, pytest.raises(TilewrightError):
        tw.export(file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


WRONG: dict[str, tuple[Callable[[Client], Any], type[TilewrightError], str]] = {
    "status": (lambda tw: tw.jobs("done"), InvalidProblem, "one of queued, running"),
    "format": (lambda tw: tw.import_results(io.BytesIO(), "csv"), InvalidProblem, "'ndjson' or 't4'"),
    "empty id": (lambda tw: tw.job(""), InvalidProblem, "not empty"),
    "the folder above": (lambda tw: tw.cancel(".."), InvalidProblem, "must not be '..'"),
    "this folder": (lambda tw: tw.trials("."), InvalidProblem, "must not be '.'"),
    "key of two lines": (
        lambda tw: tw.tune(TUNED, idempotency_key="a\nb"),
        InvalidProblem,
        "idempotency_key must be .* printable ASCII",
    ),
    "key beyond ASCII": (
        lambda tw: tw.report_misses("host", [Miss(TUNED)], "\u00e4"),
        InvalidProblem,
        "idempotency_key must be .* printable ASCII",
    ),
    "etag": (lambda tw: tw.current_set("host", 5), InvalidProblem, "etag must be .* printable ASCII"),
    "key that ends in a space": (
        lambda tw: tw.tune(TUNED, idempotency_key="a "),
        InvalidProblem,
        "idempotency_key must be .* without a space",
    ),
    "etag of two lines": (lambda tw: tw.current_set("host", "a\nb"), InvalidProblem, "etag must be"),
    "one miss": (lambda tw: tw.report_misses("host", Miss(TUNED)), InvalidProblem, "such as a list"),
    "no id": (lambda tw: tw.job(None), InvalidProblem, "must be text"),
    "id of half a character": (lambda tw: tw.job("\ud800"), InvalidProblem, "printable"),
    "class of half a character": (
        lambda tw: tw.config_sets("\ud800"),
        InvalidProblem,
        "device_class must be",
    ),
    "no class": (lambda tw: tw.current_set(None), InvalidProblem, "device_class must be"),
    "class of a pin": (lambda tw: tw.unpin(7), InvalidProblem, "device_class must be"),
    "etags": (lambda tw: tw.current_set("host", np.arange(2)), InvalidProblem, "etag must be"),
    "progress": (
        lambda tw: tw.tune(TUNED, on_progress="print"),
        InvalidProblem,
        "on_progress must be a function",
    ),
    "progress of a job": (lambda tw: tw.wait("a", 5), InvalidProblem, "must be a function"),
    "waiting": (
        lambda tw: tw.tune(TUNED, on_waiting="print"),
        InvalidProblem,
        "on_waiting must be a function",
    ),
    "wanted": (lambda tw: tw.artifacts("sha256:x", 5), InvalidProblem, "give several problems"),
    "digest": (lambda tw: tw.artifacts("sha256:x", ["y"]), InvalidProblem, "want"),
    "pin": (lambda tw: tw.pin("host", "x"), InvalidProblem, "digest"),
    "families": (lambda tw: tw.tune(TUNED, families="host"), InvalidProblem, "families"),
    "option": (lambda tw: tw.tune(TUNED, trials=3), InvalidProblem, "trials"),
    "sampler": (lambda tw: tw.tune(TUNED, sampler="best"), InvalidProblem, "sampler"),
    "since": (lambda tw: tw.export(io.BytesIO(), since="yesterday"), InvalidProblem, "since"),
    "device": (lambda tw: tw.start("gpu"), DeviceUnavailable, "'host', 'cuda:0'"),
    "devices": (lambda tw: tw.start(np.arange(2)), DeviceUnavailable, "'host', 'cuda:0'"),
    "type of a device": (lambda tw: tw.lookup(TUNED, int), DeviceUnavailable, "'host', 'cuda:0'"),
    "type": (lambda tw: tw.gemm(eye(), eye(), shared=True, dtype="float23"), InvalidProblem, "dtype"),
    "lists": (lambda tw: tw.gemm([[1.0]], [[1.0]]), InvalidProblem, "NumPy array"),
    "flag": (lambda _: GemmProblem(1, 1, 1, has_bias="no"), InvalidProblem, "has_bias must be"),
    "extent": (lambda _: GemmProblem(1.5, 1, 1), InvalidProblem, "m must be an integer"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_told_before_it_is_sent(name: str) -> None:
    call, error, says = WRONG[name]
    with Client(NOBODY) as tw, pytest.raises(error, match=says):
        call(tw)


def test_a_mistyped_option_is_told_at_once() -> None:
    with pytest.raises(TypeError, match="cache_dri"):
        Client(NOBODY, cache_dri="x")  # type: ignore[call-arg]


def test_ids_are_quoted(sharing: Server, known: Known) -> None:
    with Client(sharing.url, key=known.key, timeout=60) as tw:
        for name in ("../health/live", "a?limit=1", "a/trials", "a b", "\u00e4"):
            with pytest.raises(TilewrightError, match=r"4\d\d"):
                tw.job(name)


@pytest.mark.parametrize("url", ["http://a..b", "http://nobody.invalid"])
def test_a_url_that_is_none_is_told(url: str) -> None:
    with Client(url) as tw:
        for call in (tw.devices, lambda: tw.gemm(eye(), eye())):
            with pytest.raises(TilewrightError, match="check the URL"):
                call()


def test_enums_and_their_text_are_the_same_problem() -> None:
    given = GemmProblem(np.int64(4), 4, 4, DType.FLOAT32, Layout.NN, activation=Activation.RELU)
    assert given == GemmProblem(4, 4, 4, "float32", "nn", activation="relu")
    assert json.loads(json.dumps(given.to_dict())) == given.to_dict()
