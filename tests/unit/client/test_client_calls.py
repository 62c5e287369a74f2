"""The sans-IO client: what is sent, how answers are read, and what an import costs."""

from __future__ import annotations

import errno
import importlib
import itertools
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
from dlpack_samples import Earlier

from tilewright import Client, GemmProblem, wire
from tilewright.errors import InvalidProblem, ServiceError, ServiceUnreachable
from tilewright.http.calls import Call, Reply, Sender, answer
from tilewright.http.endpoints import Endpoints
from tilewright.http.gemm_calls import gemm_call
from tilewright.http.tensors import from_array, host_array, pieces, to_array, unpack


def reply(content: bytes, status: int = 200, kind: str = "application/json") -> Reply:
    return Reply(status, {"content-type": kind}, content)


def first(flow: Iterable[Call[Any]]) -> Call[Any]:
    """The first request of an endpoint."""
    return next(iter(flow))


@pytest.mark.parametrize("content", [b"", b"<html>", b"{}", b"[]", b'{"id": 1}', b"\xff"])
def test_an_answer_of_something_else_is_told_apart(content: bytes) -> None:
    with pytest.raises(ServiceUnreachable, match="check the URL"):
        answer(first(Endpoints.job(None, "0" * 32)), reply(content))
    with pytest.raises(ServiceUnreachable, match="check the URL"):
        answer(gemm_call({"a": np.eye(2), "b": np.eye(2)}, {}), reply(content))


@pytest.mark.parametrize(
    ("shape", "dtype", "options"),
    [
        ((1, 1), "float64", {}),
        ((4, 4), "float32", {}),
        ((4, 3), "float64", {}),
        ((3, 4), "float32", {}),
        ((1, 4, 3), "float32", {}),
        ((4, 3), "float32", {"out_dtype": "float16"}),
        ((4, 3), "float32", {"transpose_a": True}),
    ],
)
def test_a_result_of_another_shape_or_type_is_not_believed(
    shape: tuple[int, ...], dtype: str, options: Any
) -> None:
    call = gemm_call({"a": np.ones((4, 2), "f4"), "b": np.ones((2, 3), "f4")}, options)
    told = {"tilewright-ran": "numpy", "tilewright-kernel-us": "1.0"}

    def answered(d: Any) -> Any:
        return answer(call, Reply(200, told, b"".join(pieces({"d": from_array("d", d)})))).d

    with pytest.raises(ServiceUnreachable, match=r"d must be .* got .*; check the URL"):
        answered(np.ones(shape, dtype))
    if not options:
        assert (answered(np.ones((4, 3), "f4")) == 1).all()


def test_a_problem_document_becomes_an_error() -> None:
    content = b'{"type": "x", "status": 404, "title": "Not found", "detail": "there is no job"}'
    with pytest.raises(ServiceError, match="404 Not found: there is no job") as caught:
        answer(first(Endpoints.job(None, "0" * 32)), reply(content, 404, "application/problem+json"))
    assert caught.value.status == 404
    with pytest.raises(ServiceError, match="502 unexpected answer: bad gateway"):
        answer(first(Endpoints.devices(None)), reply(b"bad gateway", 502, "text/plain"))
    with pytest.raises(ServiceError, match="500 unexpected answer"):
        answer(first(Endpoints.devices(None)), reply(b"{", 500, "application/problem+json"))


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_no_success(status: int) -> None:
    """Also where nothing is read of the answer: what was asked for did not happen."""
    moved = Reply(status, {"location": "https://gate.example/login"}, b"")
    for call in (Endpoints.unpin(None, "sm_90"), Endpoints.release_device(None, "cuda:0")):
        with pytest.raises(ServiceUnreachable, match=r"redirected to 'https://gate\.example/login'; use the"):
            answer(first(call), moved)


def test_a_redirected_export_leaves_the_file_of_the_last_one(tmp_path: Path) -> None:
    file = tmp_path / "results.ndjson"
    file.write_bytes(b"of yesterday")
    export = iter(Endpoints.export(None, file))
    call = next(export)
    with pytest.raises(ServiceUnreachable, match="redirected") as caught:
        answer(call, Reply(301, {"location": "https://elsewhere"}, b""))
    with pytest.raises(ServiceUnreachable):
        export.throw(caught.value)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"of yesterday"]


FILE_ANSWERS: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
    "export": ("export", {}, {"content-type": "application/x-ndjson"}),
    "export of t4": ("export", {"format": "t4"}, {"content-type": "application/json"}),
    "report": ("report", {}, {
        "content-type": "text/html; charset=utf-8",
        "content-disposition": 'attachment; filename="tilewright-report.html"',
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", FILE_ANSWERS)
@pytest.mark.parametrize(
    ("status", "other"),
    [(200, None), (200, {"content-type": "text/html"}), (200, {}), (204, {}), (304, {}), (201, None)],
)
def test_a_file_is_replaced_by_an_answer_of_tilewright_alone(
    name: str, status: int, other: dict[str, str] | None, tmp_path: Path
) -> None:
    """A captive portal answers every request with a page of its own."""

    class Answered(Endpoints, Sender):
        def _send(self, call: Call[Any]) -> Any:
            assert call.sink is not None
            call.sink(b"of today")
            return answer(call, Reply(status, headers if other is None else other, b""))

    method, options, headers = FILE_ANSWERS[name]
    file = tmp_path / "results"
    file.write_bytes(b"of yesterday")
    if status == 200 and other is None:
        assert getattr(Answered(), method)(file, **options) == len(b"of today")
    else:
        with pytest.raises(ServiceUnreachable, match=f"{status} with .* instead of 200 .*check the URL"):
            getattr(Answered(), method)(file, **options)
    expected = b"of today" if status == 200 and other is None else b"of yesterday"
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [expected]


@pytest.mark.parametrize(
    ("name", "code"),
    [("nowhere/results", errno.ENOENT), ("file/results", errno.ENOTDIR), ("/dev/full", errno.ENOSPC)],
)
def test_a_file_that_cannot_be_written_is_named_as_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    for method in ("export", "report"):
        client = Scripted(b"data")
        with pytest.raises(OSError, match=os.strerror(code)) as caught:
            getattr(client, method)(name)
        assert (caught.value.filename, caught.value.errno) == (name, code)
        assert client.asked == [] or code == errno.ENOSPC


@pytest.mark.parametrize("name", ["results", "link", "link of a link"])
def test_an_export_keeps_links_and_the_mode_of_a_file(name: str, tmp_path: Path) -> None:
    file = tmp_path / "folder" / "results"
    file.parent.mkdir()
    (tmp_path / "link").symlink_to("folder/results")
    (tmp_path / "link of a link").symlink_to("link")
    path = file if name == "results" else tmp_path / name
    for made_before in (False, True):
        assert Scripted(b"data").export(path) == len(b"data")
        assert [one.read_bytes() for one in file.parent.iterdir()] == [b"data"]
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "link of a link").is_symlink()
        if made_before:
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        file.write_bytes(b"of yesterday")
        file.chmod(0o600)


class Scripted(Endpoints, Sender):
    """A client to which these answers come, one after the other: bodies and errors."""

    def __init__(self, *answers: bytes | Exception) -> None:
        self.answers, self.asked = list(answers), list[str]()

    def _send(self, call: Call[Any]) -> Any:
        self.asked.append(call.path)
        now = self.answers.pop(0)
        if isinstance(now, Exception):
            raise now
        if call.sink is None:
            return answer(call, reply(now))
        call.sink(now)


@pytest.mark.parametrize(
    ("items", "cursors"),
    [
        ([], itertools.repeat("a")),
        (["winner"], itertools.repeat("a")),
        (["winner"], itertools.cycle("ab")),
        (["winner"], map(str, range(1001))),  # as many pages are read before a list counts as endless
    ],
)
def test_a_list_without_an_end_is_told(items: list[Any], cursors: Iterator[str]) -> None:

    class Endless(Endpoints, Sender):
        def _send(self, _: Call[Any]) -> Any:
            return wire.BestConfigList.model_construct(items=items, next=next(cursors))

    with pytest.raises(ServiceUnreachable, match="a list without an end; check the URL"):
        Endless().configs(arch="sm_90")


@pytest.mark.parametrize("count", [0, 1, 3])
def test_lookups_have_an_answer_each(count: int) -> None:
    client = Scripted(json.dumps({"items": [{"kind": "vendor", "reason": "miss"}] * count}).encode())
    with pytest.raises(ServiceUnreachable, match=f"2 lookups with {count} results; check the URL"):
        client.lookup_many([GemmProblem(1, 2, 3)] * 2, arch="sm_90")


DONE = b'event: done\nid: 3\ndata: {"status": "succeeded"}\n\n'
END = ServiceError(404, {"title": "the end"})


def refused(*statuses: int) -> list[Exception]:
    return [ServiceError(status, {"title": "later"}) for status in statuses]


def test_a_job_is_followed_through_a_restart_of_its_service() -> None:
    client = Scripted(*refused(502, 503, 504), DONE, END)
    with pytest.raises(ServiceError, match="the end"):
        client.wait("ab")
    assert client.asked == ["/jobs/ab/events"] * 4 + ["/jobs/ab"]


def test_a_quiet_job_is_followed_as_long_as_heartbeats_come(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    class Quiet(Scripted):
        def _send(self, call: Call[Any]) -> Any:
            nonlocal now
            if call.sink and not self.asked:
                for _ in range(8):
                    call.sink(b": heartbeat\n\n")
                    now += 15.0
            return super()._send(call)

    monkeypatch.setattr("tilewright.http.events.time.monotonic", lambda: now)
    client = Quiet(ServiceUnreachable("reset"), DONE, END)
    with pytest.raises(ServiceError, match="the end"):
        client.wait("ab")
    assert len(client.asked) == 3


def test_a_page_is_no_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    times = itertools.count(step=30.0)
    monkeypatch.setattr("tilewright.http.events.time.monotonic", lambda: next(times))
    with pytest.raises(ServiceUnreachable, match="lost the events of job ab"):
        Scripted(*[b"<html>\n\n<p>Log in</p>\n\n"] * 9).wait("ab")


@pytest.mark.parametrize("status", [401, 404, 429, 500])
def test_a_job_whose_events_are_refused_is_not_followed(status: int) -> None:
    with pytest.raises(ServiceError, match=f"{status} later"):
        Scripted(*refused(status, 404)).wait("ab")


@pytest.mark.parametrize("data", [b"data: {", b'data: {"round": []}', b"data: \xff", b"other: 1"])
def test_progress_that_is_none_ends_after_the_patience_for_silence(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    garbage = b"event: progress\nid: 1\n" + data + b"\n\n"
    with pytest.raises(ServiceError, match="the end"):
        Scripted(garbage, DONE, END).wait("ab", print)
    monkeypatch.setattr("tilewright.http.events._PATIENCE_S", 0.0)
    with pytest.raises(ServiceUnreachable, match=r"lost the events of job ab .* none of tilewright's"):
        Scripted(garbage, DONE, END).wait("ab", print)


def test_a_changed_reason_to_wait_is_told_once_also_over_connections() -> None:
    heads = list[dict[str, str]]()

    class Headed(Scripted):
        def _send(self, call: Call[Any]) -> Any:
            heads.append(call.headers)
            return super()._send(call)

    def waits(reason: str | None) -> bytes:
        return f"event: waiting\ndata: {json.dumps({'waiting': reason})}\n\n".encode()

    streams = (
        b"event: status\nid: 2\ndata: {}\n\n" + waits(None) + waits("its disk is full"),
        waits("its disk is full") + waits("set aside"),
        waits(None) + DONE,
    )
    told = list[str | None]()
    with pytest.raises(ServiceError, match="the end"):
        Headed(*streams, END).wait("ab", on_waiting=told.append)
    assert told == ["its disk is full", "set aside", None]
    assert [head.get("Last-Event-ID") for head in heads[:3]] == [None, "2", "2"]


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"waiting": 5}', b"{}"])
def test_a_reason_to_wait_that_is_none_is_not_told(data: bytes) -> None:
    told = list[str | None]()
    with pytest.raises(ServiceError, match="the end"):
        Scripted(b"event: waiting\ndata: " + data + b"\n\n", DONE, END).wait("ab", None, told.append)
    assert told == []


def test_a_newer_service_may_say_more() -> None:
    health = answer(first(Endpoints.ready(None)), reply(b'{"status": "ok", "version": "9", "new": 1}'))
    assert health == wire.Health(status="ok", version="9")


def test_parameters_are_text() -> None:
    call = first(Endpoints.best_config(None, GemmProblem(1, 2, 3, "float32", has_bias=True), arch="sm_90"))
    assert call.params["m"] == "1"
    assert call.params["has_bias"] == "true"
    assert call.params["has_c"] == "false"
    assert call.params["dtype"] == "float32"


def test_a_delete_of_an_import_has_time_for_its_pauses() -> None:
    assert first(Endpoints.delete_import(None, "0" * 32)).answer_s > 60


@pytest.mark.parametrize("dtype", [
    "float16", "float32", "float64", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
    "int8", "uint8", "int32",
])  # fmt: skip
def test_tensors_survive_the_wire(dtype: object) -> None:
    array = (np.arange(24) // 3).reshape(2, 3, 4).astype(dtype)
    file = b"".join(pieces({"a": from_array("a", array), "b": from_array("b", array[0])}, {"ran": "x"}))
    again = {name: to_array(tensor) for name, tensor in unpack(file).items()}
    assert {name: values.dtype for name, values in again.items()} == dict.fromkeys("ab", array.dtype)
    assert (again["a"] == array).all()
    assert (again["b"] == array[0]).all()
    read = {name: (fields["shape"], fields["data"]) for name, fields in safetensors.deserialize(file)}
    assert read == {"a": ([2, 3, 4], array.tobytes()), "b": ([3, 4], array[0].tobytes())}


def test_a_tensor_is_sent_as_it_lies() -> None:
    array = np.zeros((1024, 1024), "f4")
    head, *parts = pieces({"a": from_array("a", array)})
    assert [len(part) for part in parts] == [2**20] * 4
    array[-1, -1] = 1
    assert bytes(parts[-1][-4:]) == array[-1, -1].tobytes()
    assert len(head) % 64 == 0
    swapped = np.arange(6, dtype=">f4").reshape(2, 3)
    assert (to_array(from_array("a", swapped)) == swapped).all()


def test_a_type_that_dlpack_has_not_is_refused_with_what_to_give() -> None:
    with pytest.raises(InvalidProblem, match="give a NumPy array in host memory, of bfloat16 by ml_dtypes"):
        from_array("a", Earlier(np.array(["text"])))


def negated_views() -> list[Any]:
    torch = pytest.importorskip("torch")
    values = torch.randn(3, 4, dtype=torch.complex64)
    plain = torch.arange(4, dtype=torch.int8).reshape(2, 2)
    return [values.conj().imag, values.mH.imag, torch.fft.fft(values).conj().imag[1:], torch._neg_view(plain)]


@pytest.mark.parametrize("index", range(4))
def test_a_view_of_negated_numbers_is_sent_with_their_sign(index: int) -> None:
    view = negated_views()[index]
    assert view.is_neg()
    sent = to_array(from_array("a", view))
    assert sent.any()
    assert sent.tolist() == view.tolist()


@pytest.mark.parametrize("shape", [(2, 3), (0, 3)])
def test_plain_tensors_and_parameters_are_sent_from_their_own_memory(shape: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    for tensor in (torch.ones(shape), torch.nn.Parameter(torch.ones(shape), requires_grad=False)):
        dtype, host = host_array("a", tensor)
        assert (dtype, host.tolist()) == ("float32", tensor.tolist())
        assert not host.size or host.ctypes.data == tensor.data_ptr()


def without_values(kind: str) -> Any:
    """A tensor whose values do not lie in its memory, or may not."""
    torch = pytest.importorskip("torch")
    ones = torch.ones(4, 4)
    if kind == "zero":
        return torch._efficientzerotensor((4, 4))
    if kind == "functional":
        return torch._to_functional_tensor(ones)
    if kind == "two":
        two = importlib.import_module("torch.testing._internal.two_tensor").TwoTensor
        return two(ones, ones)
    if kind == "fake":
        with importlib.import_module("torch._subclasses").FakeTensorMode() as mode:
            return mode.from_tensor(ones)
    if kind == "subclass":
        return torch.Tensor._make_subclass(type("Scaled", (torch.Tensor,), {}), ones)
    if kind == "freed":
        ones.untyped_storage().resize_(0)
        return ones
    wrapper = type("Wrapper", (torch.Tensor,), {"__torch_dispatch__": classmethod(run_plain)})
    return torch.Tensor._make_wrapper_subclass(wrapper, (4, 4), dtype=torch.float32)


def run_plain(_cls: type, run: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
    return run(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:torch.*")
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", ["zero", "functional", "two", "fake", "freed", "wrapper", "subclass"])
def test_a_tensor_without_its_values_in_memory_is_not_sent(kind: str, shared: bool) -> None:
    tensor = without_values(kind)
    with pytest.raises(InvalidProblem, match=r"^b .*memory .* give a "):
        host_array("b", tensor)
    with Client("http://127.0.0.1:1") as tw, pytest.raises(InvalidProblem, match=r"^b .*memory .* give a "):
        tw.gemm(np.ones((4, 4), "f4"), tensor, shared=shared)


def test_damaged_and_foreign_tensors_are_refused() -> None:
    good = b"".join(pieces({"a": from_array("a", np.eye(2))}))
    with pytest.raises(InvalidProblem, match="safetensors"):
        unpack(good[:-1])
    with pytest.raises(InvalidProblem, match="U32"):
        unpack(good.replace(b'"F64"', b'"U32"').replace(b"[2,2]", b"[2,4]"))


def test_importing_the_contract_is_light() -> None:
    code = (
        "import sys, tilewright; heavy = {'numpy', 'pydantic', 'httpx2', 'cupy'} & set(sys.modules); "
        "assert not heavy, heavy; tilewright.Client; tilewright.AsyncClient; assert 'cupy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_service_imports_neither_cuda_nor_ray() -> None:
    code = (
        "import sys, service.cli.main, service.cli.serve, service.server.app; "
        "loaded = {'cupy', 'nvmath', 'pynvml', 'ray'} & set(sys.modules); "
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
