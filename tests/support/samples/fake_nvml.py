"""NVML of a GPU that is not there: the processes on it and how much they use, as a test says."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

UUID = "00112233445566778899aabbccddeeff"


@dataclasses.dataclass
class FakeNvml:
    """What NVML would tell.

    Attributes:
        memory: bytes by process that computes on the GPU.
        drawing: bytes by process that draws on it.
        busy: percent of the SMs' time by process, within the last second.
        used: percents of the time of the whole GPU, a look each; the last one stays.
        reasons: bits of what holds the clocks down.
        refuses: functions that this GPU does not have.
    """

    memory: dict[int, int | None] = dataclasses.field(default_factory=dict)
    drawing: dict[int, int | None] = dataclasses.field(default_factory=dict)
    busy: dict[int, int] = dataclasses.field(default_factory=dict)
    used: list[int] = dataclasses.field(default_factory=lambda: [0])
    reasons: int = 0
    refuses: set[str] = dataclasses.field(default_factory=set)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        """Be ``pynvml`` until the test ends; gives our module on it."""

        class NVMLError(Exception):
            def __init__(self, value: int, text: str) -> None:
                super().__init__(text)
                self.value = value

        module: Any = ModuleType("pynvml")
        module.NVMLError, module.NVML_ERROR_NOT_FOUND, module.NVML_ERROR_NOT_SUPPORTED = NVMLError, 6, 3
        answers = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetHandleByUUID": self._handle,
            "nvmlDeviceGetComputeRunningProcesses": lambda _: _listed(self.memory),
            "nvmlDeviceGetGraphicsRunningProcesses": lambda _: _listed(self.drawing),
            "nvmlDeviceGetProcessUtilization": lambda _, since_us: self._samples(since_us),
            "nvmlDeviceGetCurrentClocksEventReasons": lambda _: self.reasons,
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=self._look()),
        }

        def answer(name: str) -> Any:
            def ask(*given: Any) -> Any:
                if name in self.refuses:
                    raise NVMLError(module.NVML_ERROR_NOT_SUPPORTED, f"{name} is not supported")
                found = answers[name](*given)
                if found is None and name != "nvmlInit":
                    raise NVMLError(module.NVML_ERROR_NOT_FOUND, f"{name}: not found")
                return found

            return ask

        for name in answers:
            setattr(module, name, answer(name))
        monkeypatch.setitem(sys.modules, "pynvml", module)
        spec = importlib.util.find_spec("tuner.devices.nvml")
        assert spec is not None
        assert spec.loader is not None
        ours = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, ours)
        spec.loader.exec_module(ours)
        return ours

    def _handle(self, uuid: str) -> str | None:
        return "gpu" if uuid == "GPU-00112233-4455-6677-8899-aabbccddeeff" else None

    def _samples(self, since_us: int) -> list[SimpleNamespace] | None:
        new = [
            SimpleNamespace(pid=pid, smUtil=used, timeStamp=since_us + 2) for pid, used in self.busy.items()
        ]
        old = [SimpleNamespace(pid=pid, smUtil=100, timeStamp=since_us + 1) for pid in self.busy]
        return [*new, *old] or None

    def _look(self) -> int:
        return self.used.pop(0) if len(self.used) > 1 else self.used[0]


def _listed(memory: dict[int, int | None]) -> list[SimpleNamespace]:
    return [SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in memory.items()]
