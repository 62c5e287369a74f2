"""tilewright: tuned GEMM kernels, their contract, their client and their launcher.

Importing this package needs neither CUDA nor a GPU; the clients load on first use.
"""

from typing import TYPE_CHECKING, Any

from tilewright.artifact import Artifact, LaunchPlan
from tilewright.config import Config
from tilewright.device import DeviceClass, DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.problem import Activation, DType, GemmProblem, Layout

if TYPE_CHECKING:
    from tilewright.async_client import AsyncClient
    from tilewright.client import Client

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
    if name == "Client":
        from tilewright.client import Client

        return Client
    if name == "AsyncClient":
        from tilewright.async_client import AsyncClient

        return AsyncClient
    raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
