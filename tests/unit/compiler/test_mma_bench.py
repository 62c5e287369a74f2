"""``tilewright bench mma``: its probe by its machine code, its race on the host, what it resumes."""

from __future__ import annotations

import ctypes
import json
import struct
import subprocess
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from device_samples import HOPPER
from host_samples import config_of
from typer.testing import CliRunner

from benchmarks.common.options import RunOptions
from benchmarks.mma import race as mma_race
from benchmarks.mma import run as mma_run
from benchmarks.mma.opponents import Candidate, Peers, probe_binary
from benchmarks.mma.run import LAYOUTS, SHAPES, TYPES, MmaRequest, problems, run_mma, summary
from kernels.compiler.build import build
from kernels.compiler.cubin import code_sections
from kernels.host.family import HOST
from kernels.mma_sync.family import MMA_SYNC
from service.cli.main import app
from tilewright import GemmProblem, Layout
from tilewright.errors import DeviceUnavailable
from tilewright.schema.trial import Outcome
from tuner.workers.builder import Compiled
from tuner.workers.device_worker import open_device

MMA = {0x03C: "HMMA", 0x037: "IMMA"}
LOCAL = {0x183: "LDL", 0x187: "STL"}
SMALL = GemmProblem(64, 48, 32, dtype="float32", layout="nn")
PEERS = """
const char* peer_name(int i) { return i == 0 ? "slow" : i == 1 ? "wrong" : i == 2 ? "refuses" : 0; }
int peer_takes(int i, const char* types, const char* layout) { return types[0] == 'f' && layout[1] == 'n'; }
int peer_launch(int i, const float* a, const float* b, float* d, int m, int n, int k, void* stream) {
    for (int row = 0; row < m; ++row)
        for (int column = 0; column < n; ++column) {
            float sum = 0;
            for (int x = 0; x < k; ++x) sum += a[row * k + x] * b[x * n + column];
            d[row * n + column] = i == 1 ? 0 : sum;
        }
    return i == 2;
}
"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("types", TYPES.split())
def test_the_probe_multiplies_and_does_nothing_else(arch: str, types: str) -> None:
    [problem] = problems("64x64x64", types, "nt")
    code = code_sections(probe_binary(problem, arch))[".text.multiply"]
    operations = [low & 0x1FF for low, _ in struct.iter_unpack("<QQ", code)]
    products = [at for at, operation in enumerate(operations) if operation in MMA]
    assert len(products) % 16 == 0
    # From the first product to the last, the loop counter and its branch at most lie between.
    assert products[-1] - products[0] + 1 - len(products) <= len(products) // 8
    assert not LOCAL.keys() & set(operations)


def test_what_is_measured() -> None:
    found = list(problems(SHAPES, TYPES, LAYOUTS))
    assert len(set(found)) == 6 * (4 * 4 + 1)  # int8 in layout nt alone
    assert GemmProblem(4096, 4096, 4096, layout=Layout.TT) in found
    assert {str(one.accumulate) for one in found} == {"float32", "float16", "int32"}


@pytest.mark.parametrize(
    ("option", "words", "rule"),
    [
        *(("shapes", f"64x64x64 {word}", "MxNxK") for word in ("foo", "1x2", "4x4x4x4", "0x4x4", "4xx4")),
        *(("types", f"int8 {word}", "of float16, ") for word in ("foo", "float16:foo", "float16:")),
        ("layouts", "nt zz", "one of nn, nt, tn, tt"),
    ],
)
def test_other_problems_are_wrong_usage(option: str, words: str, rule: str) -> None:
    result = CliRunner().invoke(app, ["bench", "mma", f"--{option}", words])
    told = " ".join(result.output.replace("│", " ").split())
    assert (result.exit_code, rule in told) == (2, True)
    assert f"Invalid value for --{option}: a {option[:-1]} must be" in told
    assert f"got {words.split()[1]!r}" in told


def test_our_configs_are_heuristic_ones_and_their_variations() -> None:
    problem = GemmProblem(4096, 4096, 4096)
    found = mma_race.configs(problem, HOPPER, 20)
    first = MMA_SYNC.heuristic_configs(problem, HOPPER)
    assert found[: len(first)] == first
    assert len(found) == len(set(found)) == 20
    assert all(MMA_SYNC.why_invalid(one, problem, HOPPER) is None for one in found)


@pytest.fixture
def peers(tmp_path: Path) -> Peers:
    source, library = tmp_path / "peers.c", tmp_path / "peers.so"
    source.write_text(PEERS)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return Peers(library)


def test_a_race_leaves_out_peers_that_are_wrong_or_refuse(peers: Peers, monkeypatch) -> None:
    device = open_device("host")
    config = config_of(threads=1)
    done: Future[Compiled] = Future()
    done.set_result(Compiled(build(HOST, config, SMALL, device.spec), Outcome.OK))
    failed: Future[Compiled] = Future()
    failed.set_result(Compiled(None, Outcome.INVALID, "spills 24 bytes"))
    ours = [mma_race.Ours(config, one) for one in (done, failed)]
    waits = ctypes.CDLL(None).usleep
    probe = Candidate("mma", [lambda _stream=0: waits(10) and None], 1e9)
    monkeypatch.setattr(mma_race, "probe", lambda _device, _problem: probe)
    said: list[str] = []
    row = mma_race.race(device, SMALL, ours, peers, 9, said.append)
    assert row["cutlass"] == "slow"
    assert row["ci_low"] <= row["ratio_cutlass"] <= row["ci_high"]
    assert row["config"] == dict(config.knobs)
    assert row["limit_tflops"] > 0
    assert row["share_of_limit"] > 0
    text = "\n".join(said)
    assert "left out" in text
    assert "spills 24 bytes" in text
    assert "wrong WRONG: off by" in text
    assert "refuses" not in text
    assert mma_race.race(device, SMALL, ours[:1], None, 9, said.append)["ratio_cutlass"] is None


def test_a_library_that_does_not_load_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceUnavailable, match=r"cutlass_peers\.cu"):
        Peers(tmp_path / "none.so")


class _Builder:
    def __init__(self, *_: Any) -> None: ...

    def submit(self, *_: Any) -> Future[Compiled]:
        return Future()

    def close(self) -> None: ...


class _Gpu:
    spec, driver = HOPPER, "nvidia 580"


def test_a_run_goes_on_where_it_stopped(tmp_path: Path, monkeypatch) -> None:
    measured: list[GemmProblem] = []

    def race(_device: Any, problem: GemmProblem, *_: Any) -> dict[str, Any]:
        measured.append(problem)
        if problem.m == 96:
            raise DeviceUnavailable("no kernel is right")
        names = mma_run._names(problem)
        return names | {"ours_us": 2.0, "share_of_limit": 0.5, "ratio_cutlass": None, "config": {}}

    monkeypatch.setattr(mma_run, "open_device", lambda _: _Gpu())
    monkeypatch.setattr(mma_run, "Builder", _Builder)
    monkeypatch.setattr(mma_run, "race", race)

    def run(layouts: str, **changes: Any) -> mma_run.MmaResult:
        asked = tuple(problems("64x64x64 96x64x64 128x64x64", "float16 int8", layouts))
        request = MmaRequest(asked, tmp_path, 1, RunOptions(out=tmp_path, **changes))
        return run_mma(request, lambda _line: None)

    first = run(layouts="nt")
    assert [len(measured), len(first.rows), len(first.failed), first.left] == [6, 4, 2, 0]
    assert len(json.loads(first.path.read_text())) == 4
    again = run(layouts="nt tt", resume=True)  # what failed and what is new
    assert measured[6:] == list(problems("96x64x64", "float16 int8", "nt")) + list(
        problems("64x64x64 96x64x64 128x64x64", "float16", "tt")
    )
    assert len(json.loads(again.path.read_text())) == 6
    assert run(layouts="nt", stop_after=1e-9).left == 6
    monkeypatch.setattr(mma_run, "source_digest", lambda _: "another")
    assert len(run(layouts="nt", resume=True).rows) == 4  # rows of another source are measured again
    assert len(json.loads(again.path.read_text())) == 6


def test_a_run_is_summed_up() -> None:
    rows = [{"share_of_limit": 0.7, "ratio_cutlass": 1.21}, {"share_of_limit": 0.9, "ratio_cutlass": 1.0}]
    said = "2 rows, 70.0 %, 90.0 % (least, most) of the register-only limit"
    assert summary(rows) == said + "; over the best peer 1.100 (geometric mean), 1.000 (least)"
    assert summary([rows[0] | {"ratio_cutlass": None}]).startswith("1 rows, 70.0 %")
    assert summary([]) == "0 rows"
