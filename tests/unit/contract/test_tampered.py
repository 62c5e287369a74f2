"""Ten thousand changed artifacts, bundles, config sets, exports and signatures through every reader: the same
content or a clear error, no code run, and little memory."""

from __future__ import annotations

import base64
import codecs
import dataclasses
import hashlib
import io
import json
import random
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from large_export import job_line, trial_lines
from set_server import config_set, entry
from signers import signed_export, signer
from store_samples import artifact, best, problem

from service.results import uploads
from tilewright import GemmProblem
from tilewright.artifact import Artifact, bundle
from tilewright.config_sets.lookup import Catalog
from tilewright.errors import TilewrightError
from tilewright.schema.config_set import ConfigSet, content_digest
from tilewright.schema.match import MatchLimits
from tilewright.trust import About, Signature, statement
from tilewright.wire import Format
from tuner.store import exchange
from tuner.store.exchange import ArtifactData, Winner

TIMES = 10_000
MOST_BYTES = 32 * 2**20
KERNEL = artifact(bytes(range(256)) * 2)
OTHER = artifact(b"\x7fELFother")
THEN = datetime(2026, 1, 2, tzinfo=UTC)
SET = config_set(
    [entry(problem(m), KERNEL) for m in (16, 64, 256)],
    near=[{"max_distance": 2.0, "expected": 0.01, "p90": 0.02, "pairs": 9}],
)
DIGEST = ConfigSet.from_bytes(SET).digest
BUNDLE = b"".join(bundle.head(one.digest, len(one.to_bytes())) + one.to_bytes() for one in (KERNEL, OTHER))
SIGNED = statement(About.CONFIG_SET, "a class", DIGEST)
SIGNATURE = signer(1).sign(About.CONFIG_SET, "a class", DIGEST).encode()


def _export() -> bytes:
    data = base64.b64encode(KERNEL.to_bytes()).decode()
    winner = Winner(dataclasses.replace(best(problem()), job_id=""), THEN)
    lines = [ArtifactData(KERNEL.digest, data), winner]
    plain = b"".join(json.dumps(exchange.to_plain(one)).encode() + b"\n" for one in lines)
    return signed_export(signer(1), job_line("b" * 32) + b"".join(trial_lines("b" * 32, 3)) + plain)


EXPORT = _export()


def read_artifact(data: bytes) -> object:
    return Artifact.from_bytes(data, KERNEL.digest).to_bytes()


def read_bundle(data: bytes) -> object:
    found = bundle.unpack(data)
    assert found.keys() <= {KERNEL.digest, OTHER.digest}
    return [found[name].to_bytes() for name in sorted(found)]


def read_set(data: bytes) -> object:
    return ConfigSet.from_bytes(data, DIGEST)


def read_signature(data: bytes) -> object:
    text = data.decode("latin-1")
    found = Signature.parse(text)
    if found.key != signer(1).public_key or not found.covers(SIGNED):
        raise TilewrightError("by another key, or not of this statement; ask again")
    return str(found)


def read_export(data: bytes) -> object:
    """Who signed it and what it holds; unsigned it may hold anything that is well formed."""
    by, _ = uploads.signer(io.BytesIO(data), Format.NDJSON)
    lines = [line for batch in uploads.records(io.BytesIO(data), Format.NDJSON) for _, line in batch]
    if by != signer(1).public_key:
        raise TilewrightError("nobody who is trusted signed it; sign it")
    return lines


def read_t4(data: bytes) -> object:
    """No T4 file is signed, so none is the same content for sure."""
    for batch in uploads.records(io.BytesIO(data), Format.T4):
        assert all(name.startswith("result") for name, _ in batch)
    raise TilewrightError("unsigned; import NDJSON")


T4 = json.dumps(
    {
        "schema_version": "1.0.0",
        "results": [
            {"tilewright": {"job": json.loads(job_line("b" * 32)), "trial": json.loads(line)}}
            for line in trial_lines("b" * 32, 2)
        ],
    }
).encode()
READERS: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "artifact": (KERNEL.to_bytes(), read_artifact),
    "bundle": (BUNDLE, read_bundle),
    "config set": (SET, read_set),
    "signature": (SIGNATURE, read_signature),
    "export": (EXPORT, read_export),
    "t4": (T4, read_t4),
}
TOKENS = (b"NaN", b"1e39", b"-1", b"1" * 400, b"1e999", b"null", b"true", b"[]", b"{}", b'"\\ud800"', b"\0",
          "\u0661\u0662".encode(), b'"../../x"', b"[" * 2000, b'{"a":' * 300, b'"__reduce__"')  # fmt: skip


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Bytes with one to three changes: of bits, bytes and spans, and of what stands between commas."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        at, size = chance.randrange(len(changed) + 1), chance.choice((1, 2, 8, 64))
        match chance.randrange(7):
            case 0 if at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            case 1:
                changed[at : at + size] = chance.randbytes(size)
            case 2:
                del changed[at : at + size]
            case 3:
                changed[at:at] = changed[at : at + size]
            case 4:
                del changed[at:]
            case 5:
                other = chance.randrange(len(changed) + 1)
                changed[at : at + size], changed[other : other + size] = (
                    changed[other : other + size],
                    changed[at : at + size],
                )
            case _:
                start, end = changed.find(b":", at) + 1, changed.find(b",", at)
                changed[max(start, 0) : max(start, end, 0)] = chance.choice(TOKENS)
    return bytes(changed)


EVENTS = ("exec", "ctypes", "os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess", "pickle",
          "marshal", "open", "import", "socket", "shutil", "mmap")  # fmt: skip


class Watch:
    """What the interpreter is asked to do that a reader of bytes has no need of."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.active = False
        sys.addaudithook(self._hook)

    def _hook(self, event: str, _arguments: tuple[object, ...]) -> None:
        if self.active and event.startswith(EVENTS):
            self.active = False
            self.seen.add(event)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.active = True
        try:
            yield
        finally:
            self.active = False


@pytest.fixture(scope="module")
def watch() -> Watch:
    """One for all tests: no hook is ever removed."""
    return Watch()


@pytest.mark.parametrize("times", [TIMES // 5, pytest.param(TIMES, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", READERS)
def test_what_was_changed_is_refused_or_the_same(name: str, times: int, watch: Watch) -> None:
    data, read = READERS[name]
    chance, told, same = random.Random(f"tampered {name}, {times}"), list[int](), 0
    for codec in ("utf-8-sig", "utf-16", "utf-16-be", "utf-16-le", "utf-32", "utf-32-be", "utf-32-le"):
        codecs.lookup(codec)  # NOTE: json.loads imports the one that the first bytes look like
    with pytest.raises(TilewrightError) if name == "t4" else _nothing():
        right = read(data)  # also loads what loads on first use
    tracemalloc.start()
    try:
        for number in range(times // len(READERS) + 1):
            given = mutated(data, chance)
            try:
                with watch.watching():
                    found = read(given)
            except TilewrightError as error:
                told.append(len(str(error)))
            except Exception as error:
                raise AssertionError(f"change {number} is not refused as it should be: {given!r}") from error
            else:
                assert found == right, f"change {number}: {given!r}"
                same += 1
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
    assert watch.seen == set()
    assert len(told) > same
    assert 5 < min(told) <= max(told) < 2_000


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def values(found: Any) -> list[tuple[Any, Any]]:
    """Every place in JSON data: its container and its name or number."""
    pairs = list(found.items()) if isinstance(found, dict) else list(enumerate(found))
    below = [place for _, one in pairs if isinstance(one, dict | list) for place in values(one)]
    return [(found, name) for name, _ in pairs] + below


VALUES = (None, True, -1, 0, 2**31, 2**63, 10**400, 1e308, -0.5, "", "x" * 300, "\ud800", [], {}, [[]], "١٢")


def replaced(plain: Any, chance: random.Random) -> Any:
    """JSON data with one or two values that are anything."""
    found = json.loads(json.dumps(plain))
    for _ in range(chance.randint(1, 2)):
        container, name = chance.choice(values(found))
        container[name] = chance.choice(VALUES)
    return found


def test_a_set_that_is_signed_anew_is_refused_or_can_be_asked(watch: Watch) -> None:
    """Who signs may put anything into a set; its clients still run."""
    chance, limits, right = random.Random(5), MatchLimits(max_regret=0.5), json.loads(SET)
    asked = [GemmProblem(m, 64, 64, "float32", "nn") for m in (16, 32, 64)]
    Catalog.of(ConfigSet.from_bytes(SET)).lookup(asked[0], limits)
    read = 0
    for _ in range(TIMES // 5):
        raw = replaced(right, chance)
        try:
            raw["digest"] = content_digest(raw)
            content = json.dumps(raw).encode()
        except (ValueError, AttributeError, TypeError):
            continue
        with watch.watching():
            try:
                catalog = Catalog.of(ConfigSet.from_bytes(content))
            except TilewrightError:
                continue
            found = [catalog.lookup(one, limits) for one in asked]
        read += 1
        assert {one.kind for one in found} <= {"exact", "nearest", "vendor"}
    assert watch.seen == set()
    assert read > 100


def test_an_artifact_with_a_digest_of_its_own_is_refused_or_is_data(watch: Watch) -> None:
    """An import brings artifacts under the digests that it likes."""
    chance, data = random.Random(6), KERNEL.to_bytes()
    length = len(json.dumps(KERNEL.header, sort_keys=True, separators=(",", ":")).encode())
    Artifact.from_bytes(data)  # also loads what loads on first use
    read = 0
    for _ in range(TIMES // 5):
        header = json.dumps(replaced(KERNEL.header, chance)).encode()
        given = data[:8] + len(header).to_bytes(4, "little") + header + data[12 + length :]
        try:
            with watch.watching():
                found = Artifact.from_bytes(given, hashlib.sha256(given).hexdigest())
        except TilewrightError:
            continue
        read += 1
        assert found.binary == KERNEL.binary
        assert Artifact.from_bytes(found.to_bytes()) == found
    assert watch.seen == set()
    assert read < TIMES // 10, "most of what a header says has a type"
