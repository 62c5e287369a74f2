"""``POST /gemm``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query, Response

from service import admission, gemms
from service.deps import GemmBody, Service, ServiceDep
from service.lane import Lane
from service.openapi import GEMM_BODY, binary, errors
from service.problems import Kind, Problem
from tilewright.errors import DeviceUnavailable, LaunchError
from tilewright.problem import GemmProblem
from tilewright.tensors import MEDIA_TYPE, Tensor, pack, unpack
from tilewright.wire import GemmQuery
from tuner.bench import DeviceBusy, GemmResult
from tuner.process import WorkerError

router = APIRouter(tags=["gemm"])


@router.post(
    "/gemm",
    operation_id="gemm",
    response_class=Response,
    openapi_extra=GEMM_BODY,
    responses={
        200: binary(MEDIA_TYPE, "A safetensors file with tensor d; its metadata says what ran"),
        **errors(
            Kind.MEDIA_TYPE,
            Kind.INVALID_PROBLEM,
            Kind.UNSUPPORTED,
            Kind.OVER_LIMIT,
            Kind.DEVICE_BUSY,
            Kind.DEVICE_FAILED,
        ),
    },
)
def post_gemm(query: Annotated[GemmQuery, Query()], body: GemmBody, service: ServiceDep) -> Response:
    """Compute D = act(alpha * op(A) op(B) + beta * C + bias) with the best kernel known.

    The headers ``Tilewright-Ran`` and ``Tilewright-Kernel-Us`` say what ran and for how many microseconds.
    """
    tensors = unpack(body)
    problem = gemms.problem_of(tensors, query)
    admission.check_size(problem, service.settings)
    admission.check_result(problem, service.settings)
    lane = admission.lane_for(service.engine, query.device)
    admission.check_supported(problem, [], lane)
    result = _run(service, lane, problem, tensors, query)
    d = Tensor(problem.out, gemms.result_shape(problem, tensors), result.d)
    metadata = {"ran": result.ran, "kernel_us": f"{result.micros:.3f}"}
    headers = {"Tilewright-Ran": metadata["ran"], "Tilewright-Kernel-Us": metadata["kernel_us"]}
    return Response(pack({"d": d}, metadata), media_type=MEDIA_TYPE, headers=headers)


def _run(
    service: Service, lane: Lane, problem: GemmProblem, tensors: Mapping[str, Tensor], query: GemmQuery
) -> GemmResult:
    with service.store.read() as session:
        found = gemms.kernel_for(session, lane.bench.spec.device_class.id, problem, query.policy)
    inputs = {name: tensor.data for name, tensor in tensors.items()}
    wait_s = service.settings.gemm_wait_s
    artifact = found[1] if found else None
    try:
        result = lane.bench.gemm(artifact, problem, inputs, query.alpha, query.beta, wait_s)
    except DeviceBusy as error:
        detail = f"{lane.name} was busy for {wait_s:g} s (gemm_wait_s); try again"
        raise Problem(Kind.DEVICE_BUSY, detail, retry_after=2) from error
    except (LaunchError, DeviceUnavailable, WorkerError) as error:
        raise Problem(Kind.DEVICE_FAILED, f"{lane.name}: {error}", retry_after=2) from error
    return dataclasses.replace(result, ran=str(found[0])) if found else result
