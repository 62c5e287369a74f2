"""What is let in: limits and support, checked before anything changes."""

from __future__ import annotations

from collections.abc import Sequence

from kernels.registry import FAMILIES
from service.errors import Kind, Refusal
from service.settings import Settings
from tilewright.schema.problem import GemmProblem
from tuner.measure.operands import why_too_large
from tuner.workers.bench import Bench

_RETRY_AFTER_S = 30


def check_size(problem: GemmProblem, settings: Settings) -> None:
    """Refuse what is over the limits of this service.

    Raises:
        Refusal: over ``max_extent`` or ``max_gemm_bytes``.
    """
    for name in ("m", "n", "k", "batch"):
        extent = getattr(problem, name)
        if extent > settings.max_extent:
            raise Refusal(
                Kind.OVER_LIMIT, f"{name} is {extent}, this service allows {settings.max_extent} (max_extent)"
            )
    if problem.total_bytes > settings.max_gemm_bytes:
        raise Refusal(
            Kind.OVER_LIMIT,
            f"{problem} needs {problem.total_bytes} bytes for its operands and result, this service allows "
            f"{settings.max_gemm_bytes} (max_gemm_bytes)",
        )


def check_result(problem: GemmProblem, settings: Settings) -> None:
    """Refuse a GEMM whose answer would be larger than a request may be: small operands can have a large
    product, and several copies of it exist on the way out.

    Raises:
        Refusal: over ``max_body_bytes``.
    """
    size = problem.m * problem.n * problem.batch * problem.out.size
    if size > settings.max_body_bytes:
        raise Refusal(
            Kind.OVER_LIMIT,
            f"the result of {problem} has {size} bytes, this service sends {settings.max_body_bytes} "
            "(max_body_bytes); ask for parts of it",
        )


def check_trials(max_trials: int, settings: Settings) -> None:
    """Refuse a job that asks for more trials than a job may have.

    Raises:
        Refusal: over ``max_trials``.
    """
    if max_trials > settings.max_trials:
        raise Refusal(
            Kind.OVER_LIMIT,
            f"max_trials is {max_trials}, this service allows {settings.max_trials} (max_trials)",
        )


def queue_full(settings: Settings) -> Refusal:
    """The refusal where no more jobs may wait."""
    detail = f"{settings.max_queue} jobs are queued (max_queue); try again later or cancel one"
    return Refusal(Kind.QUEUE_FULL, detail, retry_after=_RETRY_AFTER_S)


def check_memory(problem: GemmProblem, bench: Bench) -> None:
    """Refuse what the device cannot hold while tuning.

    Raises:
        Refusal: with the bytes it takes and the bytes there are.
    """
    reason = why_too_large(problem, bench.spec)
    if reason:
        raise Refusal(Kind.UNSUPPORTED, f"{reason}; tune a part of it")


def check_supported(problem: GemmProblem, families: Sequence[str], bench: Bench) -> None:
    """Refuse what no family, or none of those named, computes on the device.

    Raises:
        Refusal: with each family's reason.
    """
    unknown = [name for name in families if name not in FAMILIES]
    if unknown:
        raise Refusal(
            Kind.UNSUPPORTED,
            f"there is no family {', '.join(unknown)}; GET /families lists {', '.join(FAMILIES)}",
        )
    spec = bench.spec
    if problem.total_bytes > spec.memory_bytes:
        raise Refusal(
            Kind.UNSUPPORTED,
            f"{problem} needs {problem.total_bytes} bytes, {bench.name} has {spec.memory_bytes}",
        )
    reasons = {name: FAMILIES[name].why_unsupported(problem, spec) for name in families or FAMILIES}
    refused = any(reasons.values()) if families else all(reasons.values())
    if refused:
        told = "; ".join(f"{name}: {reason}" for name, reason in reasons.items() if reason)
        raise Refusal(Kind.UNSUPPORTED, f"no kernel computes {problem} on {bench.name}. {told}")


def is_possible(problem: GemmProblem, families: Sequence[str], settings: Settings, bench: Bench) -> bool:
    """Whether ``POST /tune`` would let a problem in."""
    try:
        check_size(problem, settings)
        check_supported(problem, families, bench)
        check_memory(problem, bench)
    except Refusal:
        return False
    return True
