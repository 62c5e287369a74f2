"""Bundles and config sets as bytes: what arrives damaged is never used."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from set_server import entry
from signers import signer

from tilewright import Artifact
from tilewright.artifact import Grid, LaunchPlan, Resources, Serves, bundle
from tilewright.errors import ArtifactError, TrustError
from tilewright.http.calls import Reply, answer
from tilewright.http.endpoints import Endpoints
from tilewright.schema.codec import decode, encode
from tilewright.schema.config_set import ConfigSet, SetEntry, content_digest, expected_regret
from tilewright.schema.problem import GemmProblem
from tilewright.trust import HEADER, About, ServiceKey

PLAN = LaunchPlan(
    format="elf",
    target="x86_64_v3",
    entry="gemm",
    block=(1, 1, 1),
    grid=Grid(8, 8),
    args=(),
    serves=Serves.of(GemmProblem(8, 8, 8)),
)
ONE = Artifact(PLAN, Resources(), "a" * 64, "cc", b"one")
TWO = dataclasses.replace(ONE, binary=b"another")
BAND = {"max_distance": 1.0, "expected": 0.1, "p90": 0.2, "pairs": 3}
CONTENT = {"device_class": "x", "arch": "y", "entries": [], "near": [BAND, BAND | {"max_distance": 2.0}]}


def packed(*artifacts: Artifact) -> bytes:
    data = [(artifact.digest, artifact.to_bytes()) for artifact in artifacts]
    return b"".join(bundle.head(digest, len(each)) + each for digest, each in data)


def snapshot(**changes: Any) -> bytes:
    whole = {"digest": content_digest(CONTENT), "created_at": "2026-01-02T03:04:05Z", **CONTENT}
    return json.dumps(whole | changes, indent=1).encode()


def test_a_bundle_comes_back() -> None:
    assert bundle.unpack(packed(ONE, TWO)) == {ONE.digest: ONE, TWO.digest: TWO}
    assert bundle.unpack(b"") == {}


def test_the_layout_is_digest_length_bytes() -> None:
    raw = ONE.to_bytes()
    assert packed(ONE) == hashlib.sha256(raw).digest() + struct.pack("<Q", len(raw)) + raw


def test_no_byte_of_a_bundle_may_change() -> None:
    good = packed(ONE)
    for at in range(len(good)):
        damaged = bytearray(good)
        damaged[at] ^= 0x41
        with pytest.raises(ArtifactError):
            bundle.unpack(bytes(damaged))


def test_a_bundle_may_not_end_early() -> None:
    good = packed(ONE, TWO)
    whole = len(packed(ONE))
    for length in range(1, len(good)):
        if length != whole:
            with pytest.raises(ArtifactError):
                bundle.unpack(good[:length])


def test_a_length_beyond_the_body_is_refused() -> None:
    with pytest.raises(ArtifactError, match="bytes early"):
        bundle.unpack(bundle.head("0" * 64, 2**63))


def test_a_set_is_checked_against_its_digest() -> None:
    digest = content_digest(CONTENT)
    assert ConfigSet.from_bytes(snapshot(), digest).digest == digest
    assert ConfigSet.from_bytes(snapshot(created_at="2027-01-01T00:00:00Z")).digest == digest
    for damaged in (
        snapshot(arch="z"),
        snapshot(digest=f"sha256:{'0' * 64}"),
        snapshot(near=[]),
        snapshot(more="of a newer service, but not hashed"),
        snapshot()[:-1],
        b"",
        b"[]",
        b"\xff",
    ):
        with pytest.raises(ArtifactError):
            ConfigSet.from_bytes(damaged)
    with pytest.raises(ArtifactError, match="has the digest"):
        ConfigSet.from_bytes(snapshot(), f"sha256:{'0' * 64}")


def test_fields_of_a_newer_service_count_and_are_read_over() -> None:
    content = CONTENT | {"more": 1}
    found = ConfigSet.from_bytes(snapshot(more=1, digest=content_digest(content)))
    assert found.digest == content_digest(content)


def test_an_entry_comes_back_as_it_was_read() -> None:
    raw = entry(GemmProblem(8, 16, 24, "bfloat16", "tn", batch=2), ONE)
    read = decode(SetEntry, raw)
    assert read.problem == GemmProblem(8, 16, 24, "bfloat16", "tn", batch=2)
    assert decode(SetEntry, json.loads(json.dumps(encode(read)))) == read
    assert TypeAdapter(SetEntry).validate_python(raw) == read, "pydantic reads a record as the codec does"


@pytest.mark.parametrize(
    "changes",
    [
        {"speedup": None},
        {"median_us": "2"},
        {"median_us": 10**400},
        {"use_vendor": "false"},
        {"deterministic": 1},
        {"artifact_bytes": True},
        {"artifact": "../../home/me/.bashrc"},
        {"artifact": "/home/me/.bashrc"},
        {"artifact": f"{'a' * 31}\0{'a' * 32}"},
        {"artifact": "a" * 63},
        {"artifact": "a" * 64 + "\n"},
        {"artifact": "A" * 64},
        {"artifact": "\u0661" * 64},
        {"created": "yesterday"},
        {"config": {"family": "host", "knobs": {"mc": 0.5}}},
        {"problem": {"m": 8, "n": 8, "k": 0}},
        {"problem": {"m": 8, "n": 8, "k": 8, "has_c": []}},
        {"problem": {"m": 8, "n": 8}},
    ],
)
def test_a_set_with_an_entry_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    content = CONTENT | {"entries": [entry(GemmProblem(8, 8, 8), ONE) | changes]}
    with pytest.raises(ArtifactError, match="not a config set"):
        ConfigSet.from_bytes(snapshot(**content, digest=content_digest(content)))


def test_expected_regret_is_that_of_the_nearest_band() -> None:
    found = ConfigSet.from_bytes(snapshot())
    expected = [expected_regret(found.near, distance) for distance in (0.0, 1.0, 1.5, 2.5)]
    assert expected == [0.1, 0.1, 0.1, None]


@dataclasses.dataclass
class Caller:
    service_key: ServiceKey


def test_the_set_that_the_caller_has_is_none(tmp_path: Path) -> None:
    caller = Caller(ServiceKey("http://x", tmp_path))
    call = next(iter(Endpoints.current_set(caller, "x", '"tag"')))
    assert call.headers == {"If-None-Match": '"tag"'}
    assert answer(call, Reply(304, {}, b"")) is None
    with pytest.raises(TrustError, match="signs nothing"):
        answer(call, Reply(200, {}, snapshot()))
    signature = signer(1).sign(About.CONFIG_SET, CONTENT["device_class"], content_digest(CONTENT))
    found = answer(call, Reply(200, {HEADER.lower(): signature}, snapshot()))
    assert found.signature == signature
    assert found.etag == f'"{content_digest(CONTENT)}"'
    assert found.content == snapshot()
