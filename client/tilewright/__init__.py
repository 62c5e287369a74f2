"""tilewright: tuned GEMM kernels, their contract, their client and their launcher.

Importing this package needs neither CUDA nor a GPU; the clients load on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tilewright.artifact import Artifact, LaunchPlan
from tilewright.errors import TilewrightError
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceClass, DeviceSpec
from tilewright.schema.problem import Activation, DType, GemmProblem, Layout

if TYPE_CHECKING:
    from tilewright.client import AsyncClient, Client

__version__ = "0.1.0"

__all__ = [
    "Activation",
    "Artifact",
    "AsyncClient",
    "Client",
    "Config",
    "DType",
    "DeviceClass",
    "DeviceSpec",
    "GemmProblem",
    "LaunchPlan",
    "Layout",
    "TilewrightError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in ("AsyncClient", "Client"):
        return getattr(importlib.import_module("tilewright.client"), name)
    raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
