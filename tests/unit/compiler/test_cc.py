"""The C compiler's wrapper: what it takes, what it refuses, what it says."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import pytest
from full_disk import files_of_at_most

from kernels.base.spec import BuildSpec, CompileError
from kernels.compiler import cc
from tilewright.errors import DeviceUnavailable
from tilewright.launch.host import host_arch


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuildSpec:
    source = '#ifndef N\n#error "define N"\n#endif\nint answer(void) { return N; }\n'
    (tmp_path / "small.c").write_text(source)
    monkeypatch.setattr(cc, "SOURCES", tmp_path)
    return BuildSpec("c", "small.c", host_arch(), "answer", (("N", 42),))


def test_gives_the_same_library_each_time(spec: BuildSpec) -> None:
    first, second = cc.compile_c(spec), cc.compile_c(spec)
    assert first == second
    assert first.binary.startswith(b"\x7fELF")
    assert first.compiler == cc.cc_version()
    assert first.resources.registers == first.resources.spill_bytes == 0


def test_defines_reach_the_source(spec: BuildSpec) -> None:
    other = dataclasses.replace(spec, defines=(("N", 43),))
    assert cc.compile_c(spec).binary != cc.compile_c(other).binary


def test_a_refusal_carries_the_compilers_words_and_no_path(spec: BuildSpec) -> None:
    with pytest.raises(CompileError, match=r"small\.c:2:2: error: .*define N") as refused:
        cc.compile_c(dataclasses.replace(spec, defines=()))
    assert str(cc.SOURCES) not in str(refused.value)


@pytest.mark.parametrize(
    "define", [("N", "1;system(0)"), ("N=1 -x", 1), ("N", "a b"), ("1N", 1), ("N", True), ("N", "")]
)
def test_only_identifiers_and_integers(spec: BuildSpec, define: tuple[str, int | str]) -> None:
    with pytest.raises(ValueError, match="identifiers and integers only"):
        cc.compile_c(dataclasses.replace(spec, defines=(define,)))


def test_unknown_target(spec: BuildSpec) -> None:
    with pytest.raises(ValueError, match="target must be one of x86_64"):
        cc.compile_c(dataclasses.replace(spec, target="native"))


def test_a_full_disk_is_no_fault_of_the_source(spec: BuildSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    with files_of_at_most(1000), pytest.raises(DeviceUnavailable, match="make space"):
        cc.compile_c(spec)
    monkeypatch.setattr(tempfile, "tempdir", "/proc")  # where nobody can make a folder
    with pytest.raises(DeviceUnavailable, match="make space"):
        cc.compile_c(spec)


def test_without_a_compiler_it_names_the_package(spec: BuildSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DeviceUnavailable, match="apt-get install gcc"):
        cc.compile_c(spec)


@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\n", "#!/missing\n"])
def test_a_compiler_that_does_not_run_is_a_clear_error(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cc").write_text(script)
    (tmp_path / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    cc.cc_version.cache_clear()
    with pytest.raises(DeviceUnavailable, match="run cc --version"):
        cc.cc_version()


def test_a_compiler_that_hangs_is_stopped(
    spec: BuildSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "cc"
    fake.write_text("#!/bin/sh\nexec /bin/sleep 30\n")
    fake.chmod(0o755)
    cc.cc_version()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cc, "TIMEOUT_S", 0.2)
    with pytest.raises(CompileError, match="took more than"):
        cc.compile_c(spec)
