"""The suite on the CPU: tuned, raced, stored, taken up again; and a run with replaced parts."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import Future

import pytest
from suite_samples import RUN, best_of, race_result, row_of

from benchmarks.suite import run
from benchmarks.suite.files import ResultFiles, load_log, load_provenance, load_rows
from benchmarks.suite.run import SuiteRequest, SuiteResult, SuiteRun, run_suite
from benchmarks.suite.shapes import HELD_OUT, SUITE, Shape, ShapesError
from benchmarks.suite.tuning import SuiteTuner, Tools, near_rows
from tilewright import GemmProblem
from tilewright.errors import ArtifactError
from tilewright.schema.job import JobStatus, TuneRequest
from tilewright.schema.problem import DType, Layout
from tuner.devices.host import query_host
from tuner.store import jobs
from tuner.store.database import Store

SMALL, ODD = Shape("squares", 48, 48, 48), Shape("odd", 33, 17, 31, Layout.NN)
SQUARE, LARGE = Shape("squares", 4096, 4096, 4096), Shape("squares", 8192, 8192, 8192)


def request_of(folder, **changes) -> SuiteRequest:
    tools = Tools("host", f"sqlite:///{folder}/suite.db", 2, folder / "cache")
    plain = SuiteRequest(tools, DType.FLOAT32, (SMALL,), out=folder, budget=2, rounds=8)
    return dataclasses.replace(plain, **changes)


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> tuple[SuiteRequest, SuiteResult, list[str]]:
    """One tiny shape, tuned and raced for real."""
    request = request_of(tmp_path_factory.mktemp("suite"))
    heard: list[str] = []
    return request, run_suite(request, heard.append), heard


def test_a_shape_is_tuned_raced_and_stored(ran) -> None:
    request, result, heard = ran
    assert (result.failed, result.left, result.interrupted) == ({}, [], False)
    [row] = load_rows(result.path)
    assert [row] == result.rows
    assert result.path.name == f"suite-{query_host().device_class.id}-float32.json"
    assert (row.family, row.shape, row.state) == ("host", "48x48x48-nt", row.state)
    assert row.ci_low <= row.ratio_vs_cublaslt_best <= row.ci_high
    assert row.cublas_us is row.torch_us is None
    assert heard[0] == "[1/1] 48x48x48-nt float32 (squares)"
    assert "48x48x48-nt: " in heard[1]
    assert "2 trials in " in heard[1]
    assert not list(request.out.glob("*.part"))


def test_its_files_say_what_it_rests_on(ran) -> None:
    request, result, _ = ran
    provenance = load_provenance(result.path)
    shape = provenance["shapes"]["48x48x48-nt"]
    assert provenance["rounds"] == len(shape["samples_us"]["ours"]) == request.rounds
    assert shape["candidates"]["cublaslt_best"]["library"] == "numpy"
    assert shape["relative_errors"]["ours"] < 1e-6
    assert set(shape["absent"]) == {"cublas", "torch"}
    assert len(shape["provenance"]["source_digest"]) == 64
    [entry] = load_log(result.path)
    assert (entry["trials"], entry["failure"]) == (2, "")
    assert 0 < entry["race_s"] <= entry["gpu_s"]


def test_resume_leaves_out_what_is_there(ran) -> None:
    request, result, _ = ran
    again = run_suite(dataclasses.replace(request, resume=True), lambda _: None)
    assert (again.rows, again.left) == (result.rows, [])


def test_rows_stand_as_in_the_suite_whichever_are_asked_for(tmp_path) -> None:
    order = run._order(request_of(tmp_path, shapes=(ODD, LARGE, SQUARE)))
    places = [order.index(shape.name) for shape in (SQUARE, LARGE, ODD)]
    assert places == sorted(places)
    assert len(set(order)) == len(order) == len((*SUITE, *HELD_OUT)) + 1


def test_what_has_no_winner_fails_without_tuning(ran, tmp_path) -> None:
    request, result, _ = ran
    request = dataclasses.replace(request, shapes=(SMALL, ODD), tune=False, part="two", out=tmp_path)
    again = run_suite(request, lambda _: None)
    assert again.failed == {"33x17x31-nn": "not tuned yet, and --no-tune was given"}
    [row] = again.rows  # the other one has a winner
    assert (row.config, again.path.name) == (result.rows[0].config, f"{result.path.stem}-two.json")
    assert {entry["shape"]: entry["failure"] for entry in load_log(again.path)} == {
        "48x48x48-nt": "",
        **again.failed,
    }


def test_a_type_without_any_of_the_shapes_is_refused(tmp_path) -> None:
    with pytest.raises(ShapesError, match="none of the 1 shapes exists in int8"):
        run_suite(request_of(tmp_path, dtype=DType.INT8, shapes=(ODD,)), print)


class FakeRacer:
    """Races at once; ``outcomes`` by extents, a RaceResult or an error."""

    def __init__(self, outcomes) -> None:
        self.outcomes = outcomes
        self.turn = threading.Lock()

    def start(self, problem, *_: object) -> Future:
        future: Future = Future()
        outcome = self.outcomes[problem.m]
        future.set_exception(outcome) if isinstance(outcome, Exception) else future.set_result(outcome)
        return future


class FakeShop:
    """Every problem has a winner, but tuning some raises."""

    def __init__(self, best, raises=None) -> None:
        self.best, self.raises, self.tuned = best, raises or {}, []

    def winner(self, problem):
        return (self.best(problem), None) if problem in self.tuned else None

    def near(self, _problem):
        return []

    def tune(self, request, _initial_configs):
        if request.problem.m in self.raises:
            raise self.raises[request.problem.m]
        self.tuned.append(request.problem)
        return {"trials": 7, "gpu_s": 1.0, "tune_s": 2.0, "failure": ""}


def run_over(tmp_path, outcomes, raises=None, **changes) -> tuple[SuiteRun, ResultFiles]:
    shapes = (SQUARE, LARGE)
    files = ResultFiles(tmp_path / "suite-x-float16.json", RUN, [shape.name for shape in shapes])
    suite_tuner = FakeShop(lambda problem: best_of(Shape("squares", problem.m, problem.n, problem.k)), raises)
    request = request_of(tmp_path, dtype=DType.FLOAT16, **changes)
    done = SuiteRun(request, FakeRacer(outcomes), files, suite_tuner, lambda _: None)
    done.run(shapes, ())
    return done, files


def test_a_broken_race_costs_its_shape_only(tmp_path) -> None:
    done, files = run_over(tmp_path, {4096: ArtifactError("it is wrong"), 8192: race_result(100.0, 110.0)})
    assert done.failed == {"4096x4096x4096-nt": "it is wrong"}
    assert list(files.rows) == ["8192x8192x8192-nt"]
    assert [entry["failure"] for entry in load_log(files.path)] == ["it is wrong", ""]


def test_ctrl_c_keeps_the_race_under_way(tmp_path) -> None:
    """The first shape's race runs while the second one is tuned."""
    done, files = run_over(tmp_path, {4096: race_result(100.0, 110.0)}, {8192: KeyboardInterrupt()})
    assert done.interrupted
    assert done.left == ["8192x8192x8192-nt"]
    assert [row.shape for row in load_rows(files.path)] == ["4096x4096x4096-nt"]


def test_no_shape_is_started_after_the_time_is_up(tmp_path) -> None:
    done, files = run_over(
        tmp_path, {4096: race_result(1.0, 1.0), 8192: race_result(1.0, 1.0)}, stop_after=1e-9
    )
    assert (done.left, files.rows) == (["4096x4096x4096-nt", "8192x8192x8192-nt"], {})


def test_earlier_winners_are_tried_first_the_nearest_before() -> None:
    rows = [
        row_of(LARGE, 1.0, 1.0, config={"tile_m": 8192}),
        row_of(SQUARE, 1.0, 1.0, config={"tile_m": 4096}),
        row_of(SQUARE, 1.0, 1.0, config={"tile_m": 0}, layout="nn"),
    ]
    found = near_rows(rows, GemmProblem(2048, 2048, 2048))
    assert [config["tile_m"] for config in found] == [4096, 8192]
    assert near_rows(rows, GemmProblem(2048, 2048, 2048, "bfloat16")) == found  # of the same size
    assert near_rows(rows, GemmProblem(64, 64, 64, "float8_e4m3fn")) == []


def test_of_another_shape_the_winner_that_did_best_in_either_type_is_tried() -> None:
    own = row_of(SQUARE, 0.9, 0.9, config={"tile_m": 64}, dtype="bfloat16", ratio_vs_cublaslt_best=0.9)
    twin = row_of(SQUARE, 1.1, 1.1, config={"tile_m": 128}, ratio_vs_cublaslt_best=1.1)
    for rows in ([own, twin], [twin, own]):
        found = near_rows(rows, GemmProblem(2048, 4096, 4096, "bfloat16"))
        assert [config["tile_m"] for config in found] == [128]
        same = near_rows(rows, GemmProblem(4096, 4096, 4096, "bfloat16"))
        assert [config["tile_m"] for config in same] == [128, 64]
    alone = row_of(SQUARE, 1.0, 1.0, config={"tile_m": 256}, ratio_vs_cublaslt_best=None)
    found = near_rows([alone, own], GemmProblem(2048, 4096, 4096, "bfloat16"))
    assert [config["tile_m"] for config in found] == [64]


class NoDevice:
    """What a suite_tuner asks of a racer."""

    spec = query_host()
    turn = threading.Lock()


def test_jobs_of_a_killed_suite_are_cancelled_and_others_respected(tmp_path) -> None:
    tools = Tools("host", f"sqlite:///{tmp_path}/suite.db", 1, tmp_path)
    store = Store.open(tools.database_url)
    store.migrate()
    killed, waiting = (TuneRequest(GemmProblem(size, 16, 16, "float32")) for size in (16, 32))
    with store.begin() as session:
        first, _ = jobs.submit(session, killed, NoDevice.spec)
        jobs.claim(session, NoDevice.spec.device_class.id, "bench-suite")
    with SuiteTuner(tools, NoDevice()) as suite_tuner:
        with store.read() as session:
            assert jobs.get(session, first.id).status is JobStatus.CANCELLED
        with store.begin() as session:
            jobs.submit(session, waiting, NoDevice.spec)
        with pytest.raises(Exception, match="a database of its own with TILEWRIGHT_DATABASE_URL"):
            suite_tuner.tune(killed, [])
        with store.read() as session:
            assert [job.status for job in jobs.listing(session)] == [JobStatus.QUEUED, JobStatus.CANCELLED]
    store.close()
