"""``use``: runs the linear layers of a model by tuned kernels, until ``undo()``."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from tilewright.matmul.matmul import HasMatmul, LocalMatmul
from tilewright.matmul.torch_arrays import any_autocast, dense, watched
from tilewright.torch.operator import named


class Routed:
    """The layers that :func:`use` routes through tuned kernels.

    Attributes:
        layers: the layers by their names in the model.
    """

    def __init__(self, layers: dict[str, Any], routed: Any) -> None:
        self.layers = layers
        self._routed = routed

    def undo(self) -> None:
        """Restore the original ``forward`` of the layers; calling it again does nothing."""
        self._routed.forward = torch.nn.Linear.forward  # of replicas, and of classes that torch derived since
        for layer in self.layers.values():
            if type(layer) is self._routed:
                layer.__class__ = torch.nn.Linear

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def use(model: Any, client: HasMatmul) -> Routed:
    """Route every ``torch.nn.Linear`` of a model through a client's kernels, gradients included.

    Parameters, hooks and state dicts do not change; copies and saved models are not routed; subclasses of
    ``Linear`` and layers whose ``forward`` was replaced are not routed either. torch's own product runs under
    autocast, while torch traces or counts operations, for subclasses of tensors, and if no tuned kernel wins.
    Models may be routed through different clients at once; routed layers stay with their client. Call
    ``undo()`` before ``torch.jit.script``, which reads the source of layers.

    Returns:
        The routed layers, to ``undo()``; also a context manager.
    """
    routed = _linear_with(client.matmul)
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if type(layer) is torch.nn.Linear and "forward" not in layer.__dict__
    }
    for layer in layers.values():
        layer.__class__ = routed
    return Routed(layers, routed)


def _of_operator(x: Any, weight: Any, bias: Any) -> bool:
    """Whether the operator computes this layer; subclasses of tensors may define another one."""
    if not (_plain(x) and _plain(weight) and weight.dim() == 2):
        return False
    return bias is None or (_plain(bias) and bias.shape == weight.shape[:1])


def _plain(tensor: Any) -> bool:
    # NOTE: torch.export traces plain tensors as these.
    traced = type(tensor) in (FakeTensor, FunctionalTensor)
    return dense(tensor) or (traced and tensor.layout is torch.strided and not tensor.is_nested)


def _linear_with(kernels: LocalMatmul) -> Any:
    """A class of layers with the product of ``kernels``. NOTE: an attribute of the layer would not do, as
    replicas of ``DataParallel`` have those of the original, and so its weights."""
    name = named(kernels)

    class Linear(torch.nn.Linear):  # type: ignore[misc]
        __module__ = torch.nn.Linear.__module__  # by which torch.fx knows layers of torch
        __qualname__ = torch.nn.Linear.__qualname__

        def forward(self, x: Any) -> Any:
            weight, bias = self.weight, self.bias
            compiling = torch.compiler.is_compiling()
            autocast = torch.is_autocast_enabled(x.device.type) if compiling else any_autocast()
            if autocast or x.dim() < 2:
                return torch.nn.functional.linear(x, weight, bias)
            learns = x.requires_grad or weight.requires_grad
            if compiling or (learns and torch.is_grad_enabled() and not watched()):
                if not _of_operator(x, weight, bias):
                    return torch.nn.functional.linear(x, weight, bias)
                return torch.ops.tilewright.matmul(x, weight.t(), bias, "none", name)
            return kernels.linear(x, weight, bias)

        def __reduce_ex__(self, protocol: Any) -> Any:
            if type(self) is not Linear:
                return super().__reduce_ex__(protocol)
            return object.__new__, (torch.nn.Linear,), self.__dict__

    return Linear
