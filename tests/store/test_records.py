"""Every record comes back whole from the wire, from NDJSON and from the database.

Each field has a value other than its default, made from its type, so that a new field is covered by itself.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
import re
import types
import typing
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import TypeAdapter
from store_samples import HOST, artifact

from service.results import importing
from tilewright import wire
from tilewright.schema import codec
from tilewright.schema.config import Config
from tilewright.schema.config_set import ConfigSet, SetEntry
from tilewright.schema.device import DeviceSpec
from tilewright.schema.dtype import DType
from tilewright.schema.job import JobProgress, JobStatus, Sampler, TuneRequest
from tilewright.schema.problem import Activation, GemmProblem, Layout
from tilewright.schema.trial import BestConfig, Outcome, Trial
from tilewright.wire import TuneBody
from tuner.store import best as winners
from tuner.store import entities, exchange, jobs, trials
from tuner.store.database import Store
from tuner.store.exchange import EndedJob, TrialOfJob, Winner

THEN = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
JOB = "a" * 32
PROBLEM = GemmProblem(
    96,
    80,
    64,
    DType.BFLOAT16,
    Layout.TN,
    batch=2,
    out_dtype=DType.FLOAT32,
    acc_dtype=DType.FLOAT32,
    activation=Activation.GELU,
    has_bias=True,
    has_c=True,
)
FIXED: dict[str, Any] = {
    "problem": PROBLEM,
    "config": Config.of("host", {"mc": 16, "order": "snake"}),
    "ties": (Config.of("host", {"mc": 32, "order": "rows"}),),
    "families": ("host", "simt"),
    "artifact": artifact().digest,
    "job_id": JOB,
    "device_class": HOST.device_class.id,
    "arch": HOST.arch,
    "source_digest": "b" * 64,
    "outcome": Outcome.PRUNED,
    "detail": {"threads": 2},
    "origin": "final",
    "min_gain_per_s": 0.25,
    "device": HOST,
    "status": JobStatus.CANCELLED,
    "id": JOB,
    "job": JOB,
    "digest": f"sha256:{'c' * 64}",
}


def filled(record: type[Any]) -> Any:
    """A record with every field at a value that is not its default."""
    if record is GemmProblem:
        return PROBLEM
    hints, numbers = typing.get_type_hints(record), itertools.count(3)
    values = {
        field.name: FIXED[field.name] if field.name in FIXED else _value(hints[field.name], numbers, field)
        for field in dataclasses.fields(record)
    }
    made = record(**values)
    for field in dataclasses.fields(record):
        assert getattr(made, field.name) != field.default, field.name
    return made


def _value(hint: Any, numbers: Any, field: dataclasses.Field[Any]) -> Any:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = next(one for one in typing.get_args(hint) if one is not type(None))
    if dataclasses.is_dataclass(hint):
        return filled(typing.cast(type[Any], hint))
    if typing.get_origin(hint) is tuple:
        one = typing.get_args(hint)[0]
        return (filled(one),) if dataclasses.is_dataclass(one) else tuple(next(numbers) / 2 for _ in range(3))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return next(one for one in hint if one is not field.default)
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)[0]
    if hint is bool:
        return field.default is not True
    if hint is datetime:
        return THEN
    return {int: int, float: lambda n: n / 2, str: "text-{}".format}[hint](next(numbers))


def over_json(kind: type[Any], record: Any) -> Any:
    return codec.decode(kind, json.loads(json.dumps(codec.encode(record))))


@pytest.mark.parametrize(
    "kind",
    [
        GemmProblem,
        TuneRequest,
        Trial,
        BestConfig,
        JobProgress,
        DeviceSpec,
        ConfigSet,
        EndedJob,
        TrialOfJob,
        Winner,
    ],
)
def test_a_record_comes_back_from_json(kind: type[Any]) -> None:
    record = filled(kind)
    assert over_json(kind, record) == record
    more = codec.encode(record) | {"of_a_newer_release": 1}
    assert codec.decode(kind, more) == record


@pytest.mark.parametrize("kind", [Trial, BestConfig, JobProgress, ConfigSet, SetEntry])
def test_pydantic_writes_and_reads_a_record_as_the_codec_does(kind: type[Any]) -> None:
    record, adapter = filled(kind), TypeAdapter(kind)
    assert adapter.validate_python(codec.encode(record)) == record
    assert codec.decode(kind, adapter.dump_python(record, mode="json")) == record


def test_a_tune_request_travels_and_is_stored(store: Store) -> None:
    asked = filled(TuneRequest)
    body = TuneBody.model_validate(asked.problem.to_dict() | asked.options)
    assert body.to_request(body.to_problem()) == asked
    with store.begin() as session:
        job, _ = jobs.submit(session, asked, HOST)
    with store.read() as session:
        assert jobs.known(session, job.id).request == asked


def test_an_ended_job_leaves_and_enters_whole(store: Store) -> None:
    ended = filled(EndedJob)
    with store.begin() as session:
        exchange.merge_job(session, ended)
    with store.read() as session:
        (found,) = exchange.ended_jobs(session, None, None, 10)
    left = EndedJob(**codec.gathered(EndedJob, found))
    assert left == ended
    ((_, read),) = importing.ndjson(json.dumps(exchange.to_plain(left)).encode())
    assert read == ended


@pytest.mark.parametrize(("policy", "sampler"), [("tpe", Sampler.TPE), ("brute", Sampler.RANDOM)])
def test_a_job_that_an_earlier_release_exported_keeps_its_options(policy: str, sampler: Sampler) -> None:
    earlier = exchange.to_plain(filled(EndedJob))
    earlier["policy"] = policy
    del earlier["sampler"]
    device = earlier["device"]
    device["units"], device["smem_per_unit"] = device.pop("sm_count"), device.pop("smem_per_sm")
    wanted = dataclasses.replace(filled(TuneRequest), sampler=sampler)
    assert importing.record("line 1", earlier) == dataclasses.replace(filled(EndedJob), request=wanted)


def test_a_trial_is_stored_and_travels(store: Store) -> None:
    tried = filled(Trial)
    with store.begin() as session:
        exchange.merge_job(session, filled(EndedJob))
        trials.merge(session, JOB, [(tried, THEN)])
    with store.read() as session:
        assert trials.dated(session, JOB, None, 0, 10) == [(tried, THEN)]
    line = TrialOfJob(JOB, tried, THEN)
    ((_, read),) = importing.ndjson(json.dumps(exchange.to_plain(line)).encode())
    assert read == line


def test_a_winner_is_stored_and_travels(store: Store) -> None:
    won = filled(BestConfig)
    with store.begin() as session:
        exchange.merge_job(session, filled(EndedJob))
        entities.put_artifact(session, artifact())
        winners.merge(session, won, THEN)
    with store.read() as session:
        (stored,) = winners.exact(session, won.device_class, won.problem)
    assert stored.best == won
    line = Winner(won, THEN)
    ((_, read),) = importing.ndjson(json.dumps(exchange.to_plain(line)).encode())
    assert read == line


def test_answers_show_every_field_of_their_records() -> None:
    asked = {field.name for field in dataclasses.fields(TuneRequest)}
    computed = {field.name for field in dataclasses.fields(GemmProblem)}
    assert asked <= set(wire.JobView.model_fields)
    assert asked - {"problem"} < set(wire.TuneMissesBody.model_fields)
    assert asked - {"problem"} | computed < set(TuneBody.model_fields)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kind": "book"}, "kind: must be one of job, trial, artifact, best"),
        ({"number": True}, "number: must be int, got bool"),
        ({"number": -1}, "number: must be in 0"),
        ({"number": 2**31}, "number: must be in 0"),
        ({"artifact": "../passwd"}, "artifact: must match"),
        ({"timing": {"samples_us": [1.0, "2"]}}, "timing.samples_us: must be a finite number, got str"),
        ({"timing": []}, "timing: must be an object, got list"),
        (
            {"config": {"family": "host", "knobs": {"mc": 0.5}}},
            "config.knobs.mc: must be an integer or a name",
        ),
        ({"outcome": "fine"}, "outcome: must be one of ok"),
        ({"created": "2026-01-02T03:04:05"}, "created: must have a time zone"),
        ({"created": "9999-12-31T23:59:59-14:00"}, "created: must be in the years 1 to 9999 of UTC"),
        ({"origin": "x" * 17}, "origin: must match"),
        ({"job": None}, "job: must be str, got null"),
    ],
)
def test_a_damaged_line_is_refused_with_the_field_and_the_rule(changes: dict[str, Any], says: str) -> None:
    plain = exchange.to_plain(filled(TrialOfJob))
    with pytest.raises(importing.BadLine, match=re.escape(says)):
        importing.record("line 1", plain | changes)
    for name in ("job", "number", "config", "outcome", "created"):
        with pytest.raises(importing.BadLine, match=f"{name}: is missing"):
            importing.record("line 1", {key: value for key, value in plain.items() if key != name})


@pytest.mark.parametrize(
    ("kind", "flat"), [(EndedJob, TuneRequest), (TrialOfJob, Trial), (Winner, BestConfig)]
)
def test_a_flat_record_hides_no_field_beside_it(kind: type[Any], flat: type[Any]) -> None:
    beside = len(dataclasses.fields(kind)) - 1
    assert len(codec.encode(filled(kind))) == beside + len(dataclasses.fields(flat))
