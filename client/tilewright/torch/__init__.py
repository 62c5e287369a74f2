"""Tuned kernels in torch: an operator with gradients that compiles, and models routed through it.

``tilewright.torch.use(model, client)`` routes every linear layer of a model through tuned kernels, until
``undo()``; ``torch.ops.tilewright.matmul(a, b, bias, activation)`` is the operator.
"""

from tilewright.torch.layers import Routed, use
from tilewright.torch.operator import kernels_of, matmul

__all__ = ["Routed", "kernels_of", "matmul", "use"]
