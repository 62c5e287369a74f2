"""The process that races the suite's shapes: ``python -m benchmarks.suite.worker --device cuda:0``.

A race that breaks the device costs its own shape; see :mod:`tuner.workers.process`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from benchmarks.suite.opponents import library_versions
from benchmarks.suite.race import race_shape
from tilewright.artifact import Artifact
from tuner.workers.device_worker import DeviceServer, main
from tuner.workers.frames import Frame


class SuiteServer(DeviceServer):
    """A device that also serves ``suite``: one race with everyone there is."""

    def __init__(self, device_name: str) -> None:
        super().__init__(device_name)
        self._operations["suite"] = self._suite

    def greeting(self) -> dict[str, Any]:
        """What the device is, and the libraries there are."""
        return super().greeting() | {"libraries": library_versions(self._device)}

    def _suite(self, request: Frame) -> Frame:
        problem, artifact = self._problem(request), Artifact.from_bytes(request.payloads[0])
        raced = race_shape(self._device, problem, artifact, request.header["rounds"], request.header["seed"])
        return Frame({"kind": "ok", "raced": dataclasses.asdict(raced)})


if __name__ == "__main__":
    main(SuiteServer)
