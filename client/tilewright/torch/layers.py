"""``use``: runs the linear layers of a model by tuned kernels, until ``undo()``."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, Self

import torch

from tilewright.matmul.matmul import HasMatmul, LocalMatmul
from tilewright.matmul.torch_arrays import any_autocast
from tilewright.torch.operator import named


class Routed:
    """The layers that :func:`use` routes through tuned kernels.

    Attributes:
        layers: the layers by their names in the model.
    """

    def __init__(self, layers: dict[str, Any], forward: Callable[[Any, Any], Any]) -> None:
        self.layers = layers
        self._forward = forward

    def undo(self) -> None:
        """Restore the original ``forward`` of the layers; calling it again does nothing."""
        for layer in self.layers.values():
            if getattr(layer.__dict__.get("forward"), "__func__", None) is self._forward:
                del layer.forward

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def use(model: Any, client: HasMatmul) -> Routed:
    """Route every ``torch.nn.Linear`` of a model through a client's kernels, gradients included.

    Parameters, hooks, state dicts and copies do not change; subclasses of ``Linear`` and layers whose
    ``forward`` was replaced are not routed. torch's own product runs under autocast, and if no tuned kernel
    wins. Models may be routed through different clients at once; routed layers stay with their client.

    Returns:
        The routed layers, to ``undo()``; also a context manager.
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
