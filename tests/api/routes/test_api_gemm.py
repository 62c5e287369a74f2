"""GEMMs on the service, against float64."""

from __future__ import annotations

from typing import Any

import httpx2
import ml_dtypes
import numpy as np
import pytest
from api_server import TUNED

from tilewright import Client, wire
from tilewright.errors import InvalidProblem, ServiceError
from tilewright.http.tensors import MEDIA_TYPE, from_array, pieces

TOLERANCE = {"float32": 1e-4, "float64": 1e-12}
SAFETENSORS = {"Content-Type": MEDIA_TYPE}


def operands(dtype: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> tuple[Any, Any]:
    random = np.random.default_rng(3)
    return random.standard_normal(a_shape).astype(dtype), random.standard_normal(b_shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_every_layout(client: Client, dtype: str, transpose_a: bool, transpose_b: bool) -> None:
    a, b = operands(dtype, (37, 29), (29, 41))
    answer = client.gemm(
        np.ascontiguousarray(a.T) if transpose_a else a,
        np.ascontiguousarray(b.T) if transpose_b else b,
        transpose_a=transpose_a,
        transpose_b=transpose_b,
    )
    assert answer.d.dtype == dtype
    assert answer.kernel_us > 0
    np.testing.assert_allclose(answer.d, a.astype("f8") @ b.astype("f8"), atol=TOLERANCE[dtype], rtol=0)


def test_the_whole_formula_on_a_batch(client: Client) -> None:
    a, b = operands("float64", (3, 7, 11), (3, 11, 5))
    c, bias = operands("float64", (3, 7, 5), (5,))
    answer = client.gemm(a, b, c, bias, alpha=1.5, beta=-0.5, activation="relu")
    expected = np.maximum(1.5 * (a @ b) - 0.5 * c + bias, 0.0)
    np.testing.assert_allclose(answer.d, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_factors_of_0_read_nothing(tuned: wire.JobView, client: Client, dtype: str) -> None:
    """With alpha = 0 NaN in A and B does not show, with beta = 0 that of C, as in every BLAS."""
    assert tuned.best
    a, b = operands(dtype, TUNED.a_shape, TUNED.b_shape)
    c, bias = operands(dtype, (TUNED.m, TUNED.n), (TUNED.n,))
    nothing = [np.full_like(one, np.nan) for one in (a, b, c)]
    answer = client.gemm(*nothing[:2], c, bias, alpha=0.0, beta=-2.0, activation="relu")
    np.testing.assert_allclose(answer.d, np.maximum(bias - 2 * c, 0), rtol=1e-5, atol=1e-5)
    assert answer.ran == "elementwise"
    assert answer.match == "vendor; alpha is 0, nothing is multiplied"
    assert answer.kernel_us > 0
    assert (client.gemm(*nothing[:2], alpha=0.0).d == 0).all()
    answer = client.gemm(a, b, nothing[2], bias)
    np.testing.assert_allclose(
        answer.d, a.astype("f8") @ b.astype("f8") + bias, atol=TOLERANCE[dtype], rtol=0
    )


def test_a_tuned_shape_runs_its_kernel_unless_the_vendor_won(tuned: wire.JobView, client: Client) -> None:
    assert tuned.best is not None
    a, b = operands("float32", TUNED.a_shape, TUNED.b_shape)
    answer = client.gemm(a, b)
    wanted = "numpy" if tuned.best.use_vendor else str(tuned.best.config)
    assert answer.ran == wanted
    reasons = {"disturbed": "others disturbed the race; tune again on an idle device"}
    lost = f"vendor; {reasons.get(tuned.best.verdict, 'the vendor library was faster in the race')}"
    match = lost if tuned.best.use_vendor else "exact"
    assert answer.match == client.gemm(a, b, match="nearest").match == match
    np.testing.assert_allclose(answer.d, a.astype("f8") @ b.astype("f8"), atol=1e-4, rtol=0)
    # One tuned shape tells nothing of what a near one costs.
    near = client.gemm(a[:-1], b, match="nearest", max_regret=1000.0, deterministic=True)
    assert near.match == "vendor; no tuned kernel"


class Foreign:
    """An array of another library that offers ``__array__`` alone."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self._values, dtype=dtype, copy=copy)


def test_foreign_and_strided_arrays_are_converted(client: Client) -> None:
    a, b = operands("float32", (6, 8), (4, 8))
    answer = client.gemm(Foreign(a), b.T)
    np.testing.assert_allclose(answer.d, a.astype("f8") @ b.T.astype("f8"), atol=1e-5, rtol=0)
    with pytest.raises(InvalidProblem, match="DLPack"):
        client.gemm([[1.0]], b)
    with pytest.raises(InvalidProblem, match="int64"):
        client.gemm(np.ones((2, 2), np.int64), b)


def refused(client: Client, *arrays: Any, **options: Any) -> dict[str, Any]:
    with pytest.raises(ServiceError) as error:
        client.gemm(*arrays, **options)
    return {"status": error.value.status, **error.value.problem}


def test_what_cannot_run_is_refused_with_the_rule(client: Client) -> None:
    a, b = operands("float32", (4, 8), (8, 4))
    mismatch = refused(client, a, b[:7].copy())
    assert (mismatch["status"], mismatch["type"]) == (422, "urn:tilewright:problem:invalid-problem")
    assert "b must be float32" in mismatch["detail"]
    assert "b must be float32" in refused(client, a, b.astype("f8"))["detail"]
    assert "beta must be 0" in refused(client, a, b, beta=1.0)["detail"]
    for factor in (1e39, 1e-46, -1e-46):
        assert "scale an operand" in refused(client, a, b, alpha=factor)["detail"]
    client.gemm(a, b, alpha=1e-45)  # rounds to the smallest float32
    client.gemm(a.astype("f8"), b.astype("f8"), alpha=1e-46)
    assert "bias must be" in refused(client, a, b, None, np.ones(3, "f4"))["detail"]
    assert "none of them 0" in refused(client, a[:0], b)["detail"]
    assert "(rows, columns)" in refused(client, a[0], b)["detail"]
    half = refused(client, a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16))
    assert (half["status"], half["type"]) == (422, "urn:tilewright:problem:unsupported")
    bytes_ = refused(client, a.astype("i1"), b.astype("i1"))
    assert (bytes_["type"], "int8" in bytes_["detail"]) == ("urn:tilewright:problem:unsupported", True)
    assert "tfloat32" in refused(client, a, b, dtype="tfloat32")["detail"]
    assert "does not go with it" in refused(client, a, b, dtype="int8")["detail"]
    assert refused(client, a, b, device="cuda:9")["type"] == "urn:tilewright:problem:unsupported"


@pytest.mark.parametrize("dtype", ["int4", "uint4", "uint1", "sign1"])
def test_packed_types_are_for_tuning(client: Client, http: httpx2.Client, dtype: str) -> None:
    """No tensor holds them; a job of them is refused as this device does not compute them."""
    a = np.ones((8, 8), "u1")
    refusal = refused(client, a, a, dtype=dtype)
    assert (refusal["status"], refusal["type"]) == (422, "urn:tilewright:problem:invalid-problem")
    assert f"safetensors has no packed {dtype}" in refusal["detail"]
    assert "POST /tune" in refusal["detail"]
    job = http.post("/tune", json={"m": 8, "n": 8, "k": 64, "dtype": dtype})
    assert (job.status_code, job.json()["type"]) == (422, "urn:tilewright:problem:unsupported")
    assert job.json()["detail"].startswith("use dtype float32 or float64; no kernel computes 8x8x64")
    ragged = http.post("/tune", json={"m": 8, "n": 8, "k": 63, "dtype": dtype})
    assert (ragged.status_code, ragged.json()["type"]) == (422, "urn:tilewright:problem:invalid-problem")
    assert "share a byte" in ragged.json()["detail"]


def test_limits_of_size(client: Client, http: httpx2.Client) -> None:
    wide = np.ones((1, 2049), "f4")
    assert "max_extent" in refused(client, wide, np.ones((2049, 1), "f4"))["detail"]
    large = np.ones((2048, 2048), "f4")
    for _ in range(3):
        assert refused(client, large, large)["status"] == 413
    response = http.post("/gemm", content=b"x" * (2**20 + 1), headers=SAFETENSORS)
    assert response.status_code == 413
    assert "max_body_bytes" in response.json()["detail"]


def test_a_small_request_for_a_large_result_is_refused(client: Client) -> None:
    # 4 kB in, 4 MiB out of a service that takes and sends 1 MiB.
    problem = refused(client, np.ones((1024, 1), "f4"), np.ones((1, 1024), "f4"))
    assert (problem["status"], problem["type"]) == (422, "urn:tilewright:problem:over-limit")
    assert "4194304 bytes" in problem["detail"]
    assert "max_body_bytes" in problem["detail"]


@pytest.mark.parametrize("content", [b"", b"x", b"\xff" * 64, b"".join(pieces({}))])
def test_a_body_that_is_no_gemm(http: httpx2.Client, content: bytes) -> None:
    response = http.post("/gemm", content=content, headers=SAFETENSORS)
    assert response.status_code == 422
    assert response.json()["type"] == "urn:tilewright:problem:invalid-problem"


def test_other_media_types_and_queries_are_refused(http: httpx2.Client) -> None:
    body = b"".join(pieces({name: from_array(name, np.ones((2, 2), "f4")) for name in "ab"}))
    pickled = http.post("/gemm", content=body, headers={"Content-Type": "application/x-pickle"})
    assert pickled.status_code == 415
    assert MEDIA_TYPE in pickled.json()["detail"]
    assert http.post("/gemm", params={"alpha": "nan"}, content=body, headers=SAFETENSORS).status_code == 422
    shaped = http.post("/gemm", params={"m": "5", "has_c": "true"}, content=body, headers=SAFETENSORS)
    assert (shaped.status_code, "leave has_c, m out" in shaped.text) == (422, True)
    assert http.post("/gemm", params={"kernel": "x"}, content=body, headers=SAFETENSORS).status_code == 422
    extra = b"".join(pieces({name: from_array(name, np.ones((2, 2), "f4")) for name in ("a", "b", "z")}))
    assert "give tensors a and b" in http.post("/gemm", content=extra, headers=SAFETENSORS).text


def test_a_gemm_runs_between_the_trials_of_a_job(long_job: wire.JobView, client: Client) -> None:
    a, b = operands("float64", (16, 16), (16, 16))
    answer = client.gemm(a, b)
    np.testing.assert_allclose(answer.d, a @ b, atol=1e-12, rtol=0)
    assert client.job(long_job.id).status in (wire.JobStatus.QUEUED, wire.JobStatus.RUNNING)
