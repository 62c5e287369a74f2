"""``LaunchPlan`` and ``Artifact``: everything needed to launch a tuned kernel, as plain data.

:mod:`tilewright.launch` launches an artifact without a compiler, headers or source.
"""

from __future__ import annotations

from tilewright.artifact.compiled import MAGIC, Artifact
from tilewright.artifact.plan import (
    MOST_CLUSTERS,
    WORKSPACE_ALIGN,
    Argument,
    CtaOrder,
    Finish,
    Grid,
    LaunchPlan,
    Operand,
    PackedPointer,
    Pointer,
    Repack,
    Scalar,
    ScalarKind,
    Serves,
    TensorMap,
    Workspace,
)
from tilewright.schema.kernel import Preconditions, Resources

__all__ = [
    "MAGIC",
    "MOST_CLUSTERS",
    "WORKSPACE_ALIGN",
    "Argument",
    "Artifact",
    "CtaOrder",
    "Finish",
    "Grid",
    "LaunchPlan",
    "Operand",
    "PackedPointer",
    "Pointer",
    "Preconditions",
    "Repack",
    "Resources",
    "Scalar",
    "ScalarKind",
    "Serves",
    "TensorMap",
    "Workspace",
]
