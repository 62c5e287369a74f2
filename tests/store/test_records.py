"""Every record comes back whole from the wire, from NDJSON and from the database.

Each field has a value other than its default, made from its type, so that a new field is covered by itself.
"""

from __future__ import annotations

import dataclasses
import enum
import io
import itertools
import json
import re
import types
import typing
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import TypeAdapter
from store_samples import HOST, TRUSTED, artifact

from kernels.base.tile_hint import TileHint
from service.results import uploads
from tilewright import wire
from tilewright.artifact import Serves
from tilewright.schema import codec
from tilewright.schema.config import Config
from tilewright.schema.config_set import ConfigSet, SetEntry
from tilewright.schema.device import DeviceFields, DeviceSpec
from tilewright.schema.dtype import DType
from tilewright.schema.entries import (
    AuditRecord,
    Import,
    ImportCounts,
    MissRecord,
    QuarantineEntry,
    RecordCounts,
    TrustedKey,
)
from tilewright.schema.job import JobProgress, JobStatus, Level, Sampler, SearchOptions, TuneRequest
from tilewright.schema.kernel import Resources
from tilewright.schema.match import LookupResult, MatchOptions
from tilewright.schema.problem import Activation, GemmProblem, Layout
from tilewright.schema.trial import BestConfig, Outcome, Trial, TrialResult
from tilewright.wire import Format, TuneBody
from tilewright.wire.gemm import GemmPost, SharedGemmBody
from tuner.measure.race import RaceSamples
from tuner.replay.run import RunResult, RunSpec
from tuner.store import best as winners
from tuner.store import entities, exchange, imports, jobs, misses, trials
from tuner.store.access import audit
from tuner.store.database import Store, insert_row
from tuner.store.exchange import EndedJob, TrialOfJob, Winner
from tuner.store.models import AuditRow, MissRow
from tuner.store.records import JobRecord, row_values
from tuner.store.sets import SetRecord
from tuner.workers.gemm import GemmRun
from tuner.workers.shared_memory import Region

THEN = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
JOB = "a" * 32
SPEEDUP = ("speedup", "speedup_low", "speedup_high", "confidence")
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
    "ladder": (16, 96),
    "artifact": artifact().digest,
    "job_id": JOB,
    "device_class": HOST.device_class.id,
    "arch": HOST.arch,
    "source_digest": "b" * 64,
    "outcome": Outcome.PRUNED,
    "detail": {"threads": 2},
    "origin": "final",
    "min_gain_per_s": 0.25,
    "status": JobStatus.CANCELLED,
    "id": JOB,
    "job": JOB,
    "initial_configs": (Config.of("host", {"mc": 48}),),
    "digest": f"sha256:{'c' * 64}",
}


def filled(record: type[Any]) -> Any:
    """A record with every field at a value that is not its default."""
    if record is GemmProblem:
        return PROBLEM
    hints, numbers = typing.get_type_hints(record), itertools.count(3)
    values = {
        field.name: FIXED[field.name]
        if field.name in FIXED and hints[field.name] is not int
        else _value(hints[field.name], numbers, field)
        for field in dataclasses.fields(record)
    }
    made = record(**values)
    for field in dataclasses.fields(record):
        assert getattr(made, field.name) != field.default, field.name
    return made


def _value(hint: Any, numbers: Any, field: dataclasses.Field[Any]) -> Any:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = next(one for one in typing.get_args(hint) if one is not type(None))
    if hint is DeviceSpec:
        return HOST
    if dataclasses.is_dataclass(hint):
        return filled(typing.cast(type[Any], hint))
    if typing.get_origin(hint) is tuple:
        one = typing.get_args(hint)[0]
        return tuple(_value(one, numbers, field) for _ in range(2))
    if typing.get_origin(hint) is dict:
        return {"a": next(numbers) / 2}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return next(one for one in hint if one is not field.default)
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)[0]
    if hint is bool:
        return field.default is not True
    if hint is datetime:
        return THEN
    return {int: int, float: lambda n: n / 2, str: "text-{}".format}[hint](next(numbers))


ENTRIES = {
    wire.MissView: MissRecord,
    wire.ImportView: Import,
    wire.Counts: RecordCounts,
    wire.TrustedKeyView: TrustedKey,
    wire.AuditEntry: AuditRecord,
    wire.QuarantineView: QuarantineEntry,
}


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
        *ENTRIES.values(),
        ImportCounts,
        EndedJob,
        TrialOfJob,
        Winner,
        TrialResult,
        LookupResult,
        Resources,
        RaceSamples,
        TileHint,
        Region,
        GemmRun,
        RunSpec,
        RunResult,
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


@pytest.mark.parametrize(("shown", "kind"), ENTRIES.items())
def test_an_entry_of_a_list_travels_whole(shown: Any, kind: type[Any]) -> None:
    record, told = filled(kind), codec.encode(filled(ImportCounts)) | {"staleness": "fresh"}
    told = {name: told[name] for name in shown.model_fields if name in told and name not in vars(record)}
    view = shown(**codec.gathered(shown, record, **told))
    assert view.model_dump(mode="json") == json.loads(TypeAdapter(kind).dump_json(record)) | told
    assert list(view.model_dump()) == [*codec.encode(record), *told]
    assert shown.model_validate_json(view.model_dump_json()) == view
    assert kind(**codec.gathered(kind, view)) == record


@pytest.mark.parametrize(
    ("shown", "field"),
    [
        (wire.MissView, "time_us: microseconds of one run"),
        (wire.ImportView, "signer: that key; None for unsigned"),
        (wire.ImportView, "winners that wait"),
        (wire.AuditEntry, "who: ``key ID``, ``address ...``"),
    ],
)
def test_the_document_of_the_api_explains_the_fields_of_an_entry(shown: Any, field: str) -> None:
    told = shown.model_json_schema()["description"]
    assert field in told
    assert "\nAttributes:\n    " in told


def test_a_miss_an_import_and_a_change_are_stored(store: Store) -> None:
    entered, change, told = filled(Import), filled(AuditRecord), filled(MissRecord)
    miss = dataclasses.replace(told, stake_s=told.count * told.time_us / 1e6)
    with store.begin() as session:
        imports.enter(session, entered)
        insert_row(session, AuditRow, row_values(AuditRow, change))
        problem_id = entities.ensure_problem(session, miss.problem)
        insert_row(session, MissRow, row_values(MissRow, miss, problem_id=problem_id))
    with store.read() as session:
        assert imports.get(session, entered.id) == entered
        assert audit.listing(session) == [change]
        (found,) = misses.ranked(session, None, 10)
    assert MissRecord(**codec.gathered(MissRecord, found)) == miss


def test_a_tune_request_travels_and_is_stored(store: Store) -> None:
    asked = filled(TuneRequest)
    plain = asked.problem.to_dict() | asked.options
    body = TuneBody.model_validate(plain | {"m": plain.pop("ladder")})
    assert body.to_request(body.to_problem()) == asked
    with store.begin() as session:
        job, _ = jobs.submit(session, asked, HOST)
    with store.read() as session:
        assert jobs.known(session, job.id).request == asked


def sent(line: exchange.Line) -> exchange.Line:
    """A line of an export, as an import reads it."""
    (((_, read),),) = uploads.records(
        io.BytesIO(json.dumps(exchange.to_plain(line)).encode()), wire.Format.NDJSON
    )
    return read


def test_an_ended_job_leaves_and_enters_whole(store: Store) -> None:
    ended = filled(EndedJob)
    with store.begin() as session:
        imports.enter(session, TRUSTED)
        exchange.merge_job(session, ended, TRUSTED)
    with store.read() as session:
        (found,) = exchange.ended_jobs(session, None, None, 10)
    left = EndedJob(**codec.gathered(EndedJob, found))
    assert left == ended
    read = sent(left)
    assert read == ended


@pytest.mark.parametrize(("policy", "sampler"), [("tpe", Sampler.TPE), ("brute", Sampler.RANDOM)])
def test_a_job_that_an_earlier_release_exported_keeps_its_options(policy: str, sampler: Sampler) -> None:
    earlier = exchange.to_plain(filled(EndedJob))
    earlier["policy"] = policy
    del earlier["sampler"]
    device = earlier["device"]
    device["units"], device["smem_per_unit"] = device.pop("sm_count"), device.pop("smem_per_sm")
    wanted = dataclasses.replace(filled(TuneRequest), sampler=sampler)
    assert uploads.record("line 1", earlier) == dataclasses.replace(filled(EndedJob), request=wanted)


def test_a_trial_is_stored_and_travels(store: Store) -> None:
    tried = filled(Trial)
    with store.begin() as session:
        imports.enter(session, TRUSTED)
        exchange.merge_job(session, filled(EndedJob), TRUSTED)
        trials.merge(session, JOB, [trials.prepared(tried, THEN)], TRUSTED)
    with store.read() as session:
        assert trials.dated(session, JOB, None, 0, 10) == [(tried, THEN)]
    line = TrialOfJob(JOB, tried, THEN)
    read = sent(line)
    assert read == line


def test_a_winner_is_stored_and_travels(store: Store) -> None:
    plan = dataclasses.replace(artifact().plan, serves=Serves.of(PROBLEM))
    kernel = dataclasses.replace(artifact(), plan=plan)
    won = dataclasses.replace(filled(BestConfig), artifact=kernel.digest)
    with store.begin() as session:
        imports.enter(session, TRUSTED)
        exchange.merge_job(session, filled(EndedJob), TRUSTED)
        entities.put_artifact(session, kernel)
        winners.merge(session, won, THEN, TRUSTED)
    with store.read() as session:
        (stored,) = winners.exact(session, won.device_class, won.problem)
    assert stored.best == won
    line = Winner(won, THEN)
    read = sent(line)
    assert read == line


# Requests and answers, the record that each shows, and fields of it that are told apart or in another form.
SHOWN: list[tuple[Any, Any, set[str]]] = [
    (wire.TuneBody, GemmProblem, {"m"}),
    (wire.TuneBody, SearchOptions, set()),
    (wire.TuneMissesBody, SearchOptions, set()),
    (wire.JobView, TuneRequest, set()),
    (wire.JobView, JobRecord, {"request", "device", "error", "owner", "attempt", "result"}),
    (wire.BestQuery, GemmProblem, {"m", "n", "k"}),
    (wire.BestQuery, MatchOptions, set()),
    (wire.LookupBody, MatchOptions, set()),
    (wire.LookupView, LookupResult, set()),
    (wire.GemmQuery, MatchOptions, set()),
    (wire.GemmQuery, GemmProblem, {"m", "n", "k", "batch", "dtype", "has_bias", "has_c"}),
    (GemmPost, GemmProblem, {"m", "n", "k", "dtype"}),
    (SharedGemmBody, GemmProblem, {"dtype", "has_bias", "has_c"}),
    (wire.DeviceView, DeviceFields, set()),
    (wire.BestConfigView, BestConfig, {"artifact", *SPEEDUP, "repeatable", "kernels", "vendor_samples"}),
    (
        SetEntry,
        BestConfig,
        {
            "device_class",
            "arch",
            "timing",
            "ties",
            *SPEEDUP,
            "provenance",
            "resources",
            "repeatable",
            "kernels",
            "vendor_samples",
        },
    ),
    (SetEntry, wire.QualityView, set()),
    (wire.SetInfo, SetRecord, {"id", "created"}),
    *((shown, record, set()) for shown, record in ENTRIES.items()),
    (wire.ImportView, ImportCounts, set()),
    (Trial, TrialResult, set()),
]


@pytest.mark.parametrize(("shown", "record", "apart"), SHOWN)
def test_what_shows_a_record_has_its_fields_of_the_same_types(
    shown: Any, record: Any, apart: set[str]
) -> None:
    expected, found = typing.get_type_hints(record), typing.get_type_hints(shown)
    fields = getattr(record, "model_fields", None) or [field.name for field in dataclasses.fields(record)]
    assert {name: found.get(name) for name in fields if name not in apart} == {
        name: expected[name] for name in fields if name not in apart
    }


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"schema_version": "1.0.0", "results": []}),
        json.dumps({"results": [{"tilewright": {"job": {"kind": "job"}}}], "schema_version": "1.0.0"}),
        json.dumps({"schema_version": "1.0.0", "results": []}, indent=2),
        '\n{"schema_version": "1.0.0",\n "results": []}\n',
        "\ufeff{}",
        '{"results": [' + "0," * 2**23,
    ],
)
def test_a_first_line_without_a_kind_may_be_of_a_t4_file(text: str) -> None:
    for read in (uploads.signer, lambda *given: list(uploads.records(*given))):
        with pytest.raises(uploads.BadLine, match="if this is a T4 file, import it as"):
            read(io.BytesIO(text.encode()), Format.NDJSON)


@pytest.mark.parametrize(
    "text", ['{"kind": "job", "id', "no JSON", "[1]", '{"kind": "job"}\n{}', '{"kind": 1}']
)
def test_any_other_line_is_no_t4_file(text: str) -> None:
    with pytest.raises(uploads.BadLine) as raised:
        list(uploads.records(io.BytesIO(text.encode()), Format.NDJSON))
    assert "T4" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kind": "other"}, "kind: must be one of job, trial, artifact, best"),
        ({"number": True}, "number: must be int, got bool"),
        ({"number": -1}, "number: must be in 0"),
        ({"number": 2**31}, "number: must be in 0"),
        ({"artifact": "../passwd"}, "artifact: must be 64 lower-case hexadecimal digits, such as 0123"),
        ({"timing": {"samples_us": [1.0, "2"]}}, "timing.samples_us: must be a finite number, got str"),
        ({"timing": []}, "timing: must be an object, got list"),
        (
            {"config": {"family": "host", "knobs": {"mc": 0.5}}},
            "config.knobs.mc: must be an integer or a name",
        ),
        *(
            (
                {"config": {"family": "host", "knobs": {"mc": number}}},
                "config.knobs.mc: must be in -9223372036854775807 .. 9223372036854775807, got an integer of",
            )
            for number in (2**63, -(2**63), 10**400)
        ),
        ({"outcome": "fine"}, "outcome: must be one of ok"),
        ({"created": "2026-01-02T03:04:05"}, "created: must have a time zone"),
        ({"created": "9999-12-31T23:59:59-14:00"}, "created: must be in the years 1 to 9999 of UTC"),
        ({"origin": "x" * 17}, "origin: must be at most 16 letters"),
        ({"job": None}, "job: must be str, got null"),
    ],
)
def test_a_damaged_line_is_refused_with_the_field_and_the_rule(changes: dict[str, Any], says: str) -> None:
    plain = exchange.to_plain(filled(TrialOfJob))
    with pytest.raises(uploads.BadLine, match=re.escape(says)):
        uploads.record("line 1", plain | changes)
    for name in ("job", "number", "config", "outcome", "created"):
        with pytest.raises(uploads.BadLine, match=f"{name}: is missing"):
            uploads.record("line 1", {key: value for key, value in plain.items() if key != name})


@pytest.mark.parametrize(
    ("kind", "flat"), [(EndedJob, TuneRequest), (TrialOfJob, Trial), (Winner, BestConfig)]
)
def test_a_flat_record_hides_no_field_beside_it(kind: type[Any], flat: type[Any]) -> None:
    beside = len(dataclasses.fields(kind)) - 1
    assert len(codec.encode(filled(kind))) == beside + len(dataclasses.fields(flat))


def test_a_full_level_is_not_told_so_that_requests_of_earlier_releases_are_known_again() -> None:
    asked = filled(TuneRequest)
    for level in Level:
        request = dataclasses.replace(asked, level=level)
        assert ("level" in request.options) == (level is Level.QUICK)
        assert dataclasses.replace(TuneRequest.of(request.problem, request.options), ladder=()) == (
            dataclasses.replace(request, ladder=())
        )
