"""Linear layers through tuned kernels, and back."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, Self

import torch

from tilewright.local import LocalMatmul
from tilewright.local_client import LocalMethods
from tilewright.torch.operator import named
from tilewright.torch_arrays import any_autocast


class Routed:
    """The layers that :func:`use` routed.

    Attributes:
        layers: by name within the model.
    """

    def __init__(self, layers: dict[str, Any], forward: Callable[[Any, Any], Any]) -> None:
        self.layers = layers
        self._forward = forward

    def undo(self) -> None:
        """Give the layers their own ``forward`` back; doing it again is harmless."""
        for layer in self.layers.values():
            if getattr(layer.__dict__.get("forward"), "__func__", None) is self._forward:
                del layer.forward

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def use(model: Any, client: LocalMethods) -> Routed:
    """Route every ``torch.nn.Linear`` of a model through a client's kernels, gradients included.

    Parameters, hooks, state dicts and copies stay what they were; subclasses of ``Linear`` and layers whose
    ``forward`` was replaced are left alone. Where there is no tuned kernel that wins, and under autocast,
    torch's own runs. Models may be routed through different clients at once; layers that are routed already
    stay as they are.

    Returns:
        What to ``undo()``; also a context manager.
    """
    forward = _forward_with(client.matmul)
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if type(layer) is torch.nn.Linear and "forward" not in layer.__dict__
    }
    for layer in layers.values():
        layer.forward = types.MethodType(forward, layer)
    return Routed(layers, forward)


def _forward_with(kernels: LocalMatmul) -> Callable[[Any, Any], Any]:
    name = named(kernels)

    def forward(self: Any, x: Any) -> Any:
        weight, bias = self.weight, self.bias
        compiling = torch.compiler.is_compiling()
        autocast = torch.is_autocast_enabled(x.device.type) if compiling else any_autocast()
        if autocast or x.dim() < 2:
            return torch.nn.functional.linear(x, weight, bias)
        if compiling or (torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)):
            return torch.ops.tilewright.matmul(x, weight.t(), bias, "none", name)
        return kernels.linear(x, weight, bias)

    return forward
