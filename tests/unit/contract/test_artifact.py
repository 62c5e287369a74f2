"""Artifacts and launch plans as bytes: round trips, digests, and damage."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import Artifact, GemmProblem, LaunchPlan
from tilewright.artifact import (
    MAGIC,
    CtaOrder,
    Grid,
    Pointer,
    Preconditions,
    Resources,
    Scalar,
    Serves,
    TensorMap,
    Workspace,
)
from tilewright.errors import ArtifactError

PROBLEM = GemmProblem(1000, 2000, 512, has_bias=True)
PLAN = LaunchPlan(
    format="cubin",
    target="sm_90a",
    entry="gemm",
    block=(384, 1, 1),
    grid=Grid(128, 256, split_k=2, max_blocks=132),
    args=(
        TensorMap("a", (64, 128)),
        TensorMap("c", (64, 64), swizzle=64, promotion=0, kind="c_tensor_map"),
        TensorMap("d", (64, 64), swizzle=64, promotion=256),
        Pointer("workspace"),
        Scalar("m", "int32"),
        Scalar("alpha", "float32"),
    ),
    serves=Serves.of(PROBLEM),
    dynamic_smem=200_000,
    cluster=(2, 1, 1),
    workspace=Workspace(4, 1024, 100),
    preconditions=Preconditions(16, 16, 8, 13000, 2**28 - 1),
)
BINARY = bytes(range(256)) * 4
ARTIFACT = Artifact(PLAN, Resources(168, 0, 64, 200_000), "ab" * 32, "nvrtc 13.0", BINARY)
DATA = ARTIFACT.to_bytes()
START = len(MAGIC) + 4
HEADER = json.loads(DATA[START : -len(BINARY)])


def framed(header: bytes, binary: bytes = BINARY) -> bytes:
    return MAGIC + struct.pack("<I", len(header)) + header + binary


def changed(**changes: Any) -> bytes:
    """The artifact with parts of its plan replaced; None takes one out."""
    plan = {name: value for name, value in (HEADER["plan"] | changes).items() if value is not None}
    return framed(json.dumps(HEADER | {"plan": plan}).encode())


def test_round_trip() -> None:
    again = Artifact.from_bytes(DATA, ARTIFACT.digest)
    assert again == ARTIFACT
    assert again.to_bytes() == DATA
    assert isinstance(again.plan.args[0], TensorMap)
    assert again.plan.args[0].box == (64, 128)


def test_an_empty_binary_survives() -> None:
    bare = dataclasses.replace(ARTIFACT, binary=b"")
    assert Artifact.from_bytes(bare.to_bytes()) == bare


def test_plan_round_trip_through_json() -> None:
    assert LaunchPlan.from_dict(json.loads(json.dumps(PLAN.to_dict()))) == PLAN


def test_layout_of_the_bytes() -> None:
    assert DATA[:8] == b"TILEWRT1"
    (length,) = struct.unpack_from("<I", DATA, 8)
    assert DATA[START + length :] == BINARY
    assert ARTIFACT.digest == hashlib.sha256(DATA).hexdigest()


def test_the_digest_is_stable() -> None:
    """Pinned: a change here makes every stored artifact of every user a stranger."""
    plan = LaunchPlan("elf", "x86_64_v3", "f", (1, 1, 1), Grid(8, 8), (Pointer("a"),), Serves.of(PROBLEM))
    digest = Artifact(plan, Resources(), "0" * 64, "cc 12", b"binary").digest
    assert digest == "2a47f140078a3196fcdb83880d2d7024863ebb93cfae9f505d88849ba7ce7c0e"


def test_a_plan_of_an_earlier_release_stays_as_it_was_stored() -> None:
    """Its artifact is named by its digest."""
    plan = LaunchPlan("cubin", "sm_90a", "f", (1, 1, 1), Grid(8, 8), (CtaOrder("g"),), Serves.of(PROBLEM))
    stored = plan.to_dict()
    stored["args"][0]["kind"] = "block_order"
    assert LaunchPlan.from_dict(stored).to_dict() == stored


def test_a_bound_on_extents_is_kept_where_there_is_one() -> None:
    assert PLAN.to_dict()["preconditions"]["max_extent"] == 2**28 - 1
    unbound = dataclasses.replace(PLAN, preconditions=Preconditions(16, 16, 8, 13000))
    assert LaunchPlan.from_dict(unbound.to_dict()) == unbound


def test_a_bound_on_k_is_kept_where_there_is_one() -> None:
    assert "max_k" not in PLAN.to_dict()["preconditions"]
    bound = dataclasses.replace(PLAN, preconditions=Preconditions(16, 16, 8, 13000, max_k=4096))
    assert bound.to_dict()["preconditions"]["max_k"] == 4096
    assert LaunchPlan.from_dict(bound.to_dict()) == bound


@pytest.mark.parametrize(
    "change",
    [
        {"binary": BINARY + b"\0"},
        {"compiler": "nvrtc 13.1"},
        {"source_digest": "cd" * 32},
        {"resources": Resources(169, 0, 64, 200_000)},
        {"plan": dataclasses.replace(PLAN, dynamic_smem=200_016)},
        {"plan": dataclasses.replace(PLAN, grid=Grid(128, 256, 2, 131))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_digest_covers_everything(change: dict[str, Any]) -> None:
    assert dataclasses.replace(ARTIFACT, **change).digest != ARTIFACT.digest


POSITIONS = {
    "magic": 0,
    "length": 8,
    "first byte of the header": START,
    "middle of the header": START + 200,
    "last byte of the header": len(DATA) - len(BINARY) - 1,
    "first byte of the binary": len(DATA) - len(BINARY),
    "last byte": len(DATA) - 1,
}


@pytest.mark.parametrize("bit", [0, 7])
@pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS.keys())
def test_a_flipped_bit_breaks_the_digest(position: int, bit: int) -> None:
    damaged = bytearray(DATA)
    damaged[position] ^= 1 << bit
    with pytest.raises(ArtifactError, match=r"does not match its digest .*; fetch it again"):
        Artifact.from_bytes(bytes(damaged), ARTIFACT.digest)


@pytest.mark.parametrize("length", [0, 7, 8, 11])
def test_shorter_than_a_header(length: int) -> None:
    with pytest.raises(ArtifactError, match="wrong magic"):
        Artifact.from_bytes(DATA[:length])


def test_every_truncated_header_is_refused() -> None:
    for length in range(START, len(DATA) - len(BINARY), 7):
        with pytest.raises(ArtifactError, match="damaged artifact header"):
            Artifact.from_bytes(DATA[:length])


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"null",
        b"[]",
        b'"plan"',
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        b"9" * 10_000,
        json.dumps({**HEADER, "resources": {"color": 1}}).encode(),
        json.dumps({**HEADER, "resources": None}).encode(),
    ],
    ids=lambda header: repr(header[:12]),
)
def test_headers_that_are_no_header(header: bytes) -> None:
    with pytest.raises(ArtifactError, match="damaged artifact header"):
        Artifact.from_bytes(framed(header))


@pytest.mark.parametrize(
    "changes",
    [
        {"grid": None},
        {"grid": {"tile_m": 1}},
        {"grid": [1, 2]},
        {"block": [1, 2]},
        {"block": 7},
        {"block": ["x", 1, 1]},
        {"block": [float("inf"), 1, 1]},
        {"args": 5},
        {"args": [1]},
        {"args": [{"kind": "tensor_map", "operand": "a", "box": [1], "swizzle": 0, "promotion": 0}]},
        {"args": [{"operand": "a"}]},
        {"serves": {}},
        {"workspace": {"bytes": 1}},
        {"preconditions": "none"},
        {"cluster": None},
    ],
    ids=str,
)
def test_plans_that_are_no_plan(changes: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError, match="not a launch plan"):
        Artifact.from_bytes(changed(**changes))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


def parses_or_is_refused(data: bytes) -> None:
    """Any exception but ArtifactError fails the test."""
    with contextlib.suppress(ArtifactError):
        assert isinstance(Artifact.from_bytes(data), Artifact)


@settings(max_examples=200, deadline=None, database=None)
@given(st.binary(max_size=200))
def test_garbage_after_the_magic(data: bytes) -> None:
    parses_or_is_refused(MAGIC + data)
    parses_or_is_refused(framed(data))
    parses_or_is_refused(data)


@settings(max_examples=200, deadline=None, database=None)
@given(st.sampled_from(sorted(HEADER["plan"])), _JSON)
def test_garbage_in_a_field_of_the_plan(name: str, value: Any) -> None:
    parses_or_is_refused(changed(**{name: value}))


@settings(max_examples=100, deadline=None, database=None)
@given(st.integers(START, len(DATA) - len(BINARY) - 1), st.integers(0, 255))
def test_garbage_bytes_in_the_header(position: int, value: int) -> None:
    parses_or_is_refused(DATA[:position] + bytes([value]) + DATA[position + 1 :])
