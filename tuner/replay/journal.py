"""The journal of a recording: one JSON line an event, so that a kill costs at most the last line.

The first line says what is recorded; every other one is a result of the T4 format, or the provenance of
those that follow.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernels.family import Knob
from tilewright.config import Config
from tilewright.device import DeviceSpec
from tilewright.problem import GemmProblem
from tuner.replay import t4
from tuner.replay.space import Entry, RecordedSpace, SpaceError, assemble


class Journal:
    """Appends results to a file and knows those that are there.

    Attributes:
        entries: by config, in the order they were measured.
        provenance: of the results; empty before the first.
    """

    def __init__(self, path: Path, head: Mapping[str, Any], resume: bool) -> None:
        """Begin a journal, or go on with the one at ``path`` where ``resume`` is set and there is one.

        Raises:
            SpaceError: one is there and is not to be resumed, or it records something else.
        """
        self.entries: dict[Config, Entry] = {}
        self.provenance: dict[str, Any] = {}
        self._path = path
        self._family = str(head["family"])
        old = path.exists()
        if old and not resume:
            raise SpaceError(f"{path} holds an interrupted recording: go on with --resume or remove it")
        if old:
            self._load(head)
        else:
            self._append(head)

    def add(self, config: Config, entry: Entry) -> None:
        """Keep a result; it is in the hands of the operating system when this returns."""
        self.entries[config] = entry
        self._append(t4.result(dict(config.knobs), entry))

    def set_provenance(self, provenance: Mapping[str, Any]) -> None:
        """Say where the results come from.

        Raises:
            SpaceError: earlier ones come from elsewhere.
        """
        if self.provenance:
            changed = [key for key, value in provenance.items() if self.provenance.get(key) != value]
            if changed:
                names = ", ".join(changed)
                raise SpaceError(f"{names} changed since the recording began: remove the journal, start anew")
            return
        self.provenance = dict(provenance)
        self._append({"provenance": self.provenance})

    def _append(self, event: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(event, separators=(",", ":")) + "\n")

    def _load(self, head: Mapping[str, Any]) -> None:
        data = self._path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        # NOTE: a kill may have torn the last line; what follows must not be glued to it.
        os.truncate(self._path, len(whole))
        if not whole:
            self._append(head)
            return
        first, *events = map(json.loads, whole.splitlines())
        differing = [key for key, value in json.loads(json.dumps(head)).items() if first.get(key) != value]
        if differing:
            names = ", ".join(differing)
            raise SpaceError(f"{self._path} records another {names}: remove it or choose another file")
        for event in events:
            self._take(event)

    def _take(self, event: Mapping[str, Any]) -> None:
        if "provenance" in event:
            self.provenance = event["provenance"]
        else:
            self.entries[Config.of(self._family, event["configuration"])] = t4.entry(event)


def space_of(
    journal: Journal, name: str, knobs: Sequence[Knob], problem: GemmProblem, device: DeviceSpec
) -> RecordedSpace:
    """What a journal holds, as a space.

    Raises:
        SpaceError: nothing in it went well.
    """
    family = next(iter(journal.entries)).family if journal.entries else name
    configs = [[config[knob.name] for knob in knobs] for config in journal.entries]
    own = tuple(Knob(knob.name, knob.values, "") for knob in knobs)
    points, entries = assemble(own, configs, list(journal.entries.values()))
    return RecordedSpace(name, family, own, points, entries, problem, device, journal.provenance)
