"""``LaunchPlan`` and ``Artifact``: everything needed to launch a tuned kernel, as plain data.

Whoever holds an artifact launches it with :mod:`tilewright.launch`: no compiler, no headers, no source.
"""

from __future__ import annotations

from tilewright.artifact.arguments import (
    MOST_CLUSTERS,
    Argument,
    BlockOrder,
    Operand,
    Pointer,
    Scalar,
    ScalarKind,
    TensorMap,
)
from tilewright.artifact.compiled import MAGIC, Artifact, Resources, is_digest
from tilewright.artifact.grid import Grid
from tilewright.artifact.plan import LaunchPlan, Preconditions, Serves, Workspace
from tilewright.artifact.steps import Finish, Repack

__all__ = [
    "MAGIC",
    "MOST_CLUSTERS",
    "Argument",
    "Artifact",
    "BlockOrder",
    "Finish",
    "Grid",
    "LaunchPlan",
    "Operand",
    "Pointer",
    "Preconditions",
    "Repack",
    "Resources",
    "Scalar",
    "ScalarKind",
    "Serves",
    "TensorMap",
    "Workspace",
    "is_digest",
]
