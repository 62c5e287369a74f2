"""Tuned kernels in torch: an operator that differentiates and compiles, and models routed through it.

``tilewright.torch.use(model, client)`` sends every linear layer of a model to tuned kernels and can be
undone; ``torch.ops.tilewright.matmul(a, b, bias, activation)`` is for code of one's own.
"""

from tilewright.torch.layers import Routed, use
from tilewright.torch.operator import kernels_of, matmul

__all__ = ["Routed", "kernels_of", "matmul", "use"]
