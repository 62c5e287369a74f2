"""``LazyModule``: imports a module at its first use, as its import takes longer than a start from the
cache."""

from __future__ import annotations

import importlib
from typing import Any

from tilewright import forks


class LazyModule:
    """Stands for a module; the first attribute that is read imports it. Type checkers see the real import."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        with forks.importing():
            module = importlib.import_module(self._name)
        return getattr(module, attribute)
