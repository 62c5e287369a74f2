"""tilewright: tuned GEMM kernels, their contract, their client and their launcher.

Importing this package needs neither CUDA nor a GPU.
"""

from tilewright.artifact import Artifact, LaunchPlan
from tilewright.config import Config
from tilewright.device import DeviceClass, DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.problem import Activation, DType, GemmProblem, Layout

__version__ = "0.1.0"

__all__ = [
    "Activation",
    "Artifact",
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
