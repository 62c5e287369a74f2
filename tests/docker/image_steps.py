"""Dockerfiles without a container engine: parse them, and lay their last stage out in a scratch folder."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import re
import shlex
import shutil
import tomllib
import venv
from importlib import metadata
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"


@dataclasses.dataclass(frozen=True)
class Step:
    """One instruction of a Dockerfile."""

    word: str
    text: str

    @property
    def arguments(self) -> list[str]:
        """The words of a COPY or the strings of an exec form, options left out."""
        if self.text.startswith("["):
            return json.loads(self.text)
        return [word for word in shlex.split(self.text) if not word.startswith("--")]

    @property
    def from_stage(self) -> bool:
        return "--from=" in self.text


def stages(path: Path) -> list[list[Step]]:
    """The instructions of each stage, its FROM first."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    steps = [Step(*line.split(maxsplit=1)) for line in joined.splitlines() if line]
    starts = [i for i, step in enumerate(steps) if step.word == "FROM"]
    return [steps[i:j] for i, j in zip(starts, [*starts[1:], len(steps)], strict=True)]


def environment(stage: list[Step]) -> dict[str, str]:
    """What the ENV instructions set."""
    words = [word for step in stage if step.word == "ENV" for word in step.arguments]
    return dict(word.split("=", 1) for word in words)


def exec_form(stage: list[Step], word: str) -> list[str]:
    """The command of an ENTRYPOINT, CMD or HEALTHCHECK in exec form."""
    (text,) = [step.text for step in stage if step.word == word]
    command: list[str] = json.loads(text[text.index("[") :])
    return command


def is_sent(name: str) -> bool:
    """Whether .dockerignore lets a file or folder of the checkout reach the builder."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    sent = True
    for line in lines:
        pattern = line.removeprefix("!")
        path = PurePosixPath(name)
        ways = [path, *path.parents]
        if line and not line.startswith("#") and any(_matches(str(way), pattern) for way in ways):
            sent = line.startswith("!")
    return sent


def lay_out(stage: list[Step], scratch: Path, lock: Path) -> None:
    """Carry the COPY steps of a final stage out under ``scratch``, the packages of ``lock`` as /opt/venv."""
    for step in stage:
        if step.word != "COPY":
            continue
        source, target = step.arguments
        if step.from_stage:
            _link_packages(scratch / target.lstrip("/"), lock)
        elif (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, scratch / target.lstrip("/"), ignore=_not_sent)
        else:
            shutil.copy(ROOT / source, scratch / target.lstrip("/"))


def pins(lock: Path) -> dict[str, set[str]]:
    """The versions a lock file allows, by package."""
    found: dict[str, set[str]] = {}
    for requirement in _requirements(lock):
        found.setdefault(requirement.name, set()).add(str(requirement.specifier))
    return found


def wanted(extras: set[str]) -> list[Requirement]:
    """What the service with some extras, and the client, ask for."""
    paths = (ROOT / "pyproject.toml", ROOT / "client/pyproject.toml")
    service, client = (tomllib.loads(path.read_text())["project"] for path in paths)
    optional = [line for extra in extras for line in service["optional-dependencies"][extra]]
    lines = [*service["dependencies"], *client["dependencies"], *optional]
    return [requirement for line in lines if (requirement := Requirement(line)).name != client["name"]]


def _requirements(lock: Path) -> list[Requirement]:
    lines = [line.removesuffix("\\") for line in lock.read_text().splitlines() if not line.startswith(" ")]
    return [Requirement(line) for line in lines]


def _link_packages(folder: Path, lock: Path) -> None:
    """A virtual environment that holds what is installed here of ``lock``, and nothing else."""
    venv.EnvBuilder(symlinks=True).create(folder)
    (site,) = folder.glob("lib/python*/site-packages")
    here = {dist.name.lower().replace("_", "-"): dist for dist in metadata.distributions()}
    for requirement in _requirements(lock):
        distribution = here.get(requirement.name)
        if distribution and (requirement.marker is None or requirement.marker.evaluate()):
            assert requirement.specifier.contains(distribution.version), requirement
            for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
                if not (site / name).exists():
                    (site / name).symlink_to(distribution.locate_file(name))


def _matches(path: str, pattern: str) -> bool:
    return fnmatch.fnmatch(path, pattern) or fnmatch.fnmatch(f"/{path}", pattern.replace("**", "*"))


def _not_sent(folder: str, names: list[str]) -> list[str]:
    inside = Path(folder).relative_to(ROOT)
    return [name for name in names if not is_sent(str(inside / name))]
