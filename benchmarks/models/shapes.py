"""Shapes of ``tilewright bench unseen``, written down before the first run.

Sixty are projections of public models: in the forward pass y = x W' with W stored N x K (layout nt), in the
weight gradient dW = dY' X (tn) with few tokens for K. Twenty are small, odd or degenerate. None is in the
suite. Every second shape of a group is held out: measure those last.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.common.shapes import Shape
from tilewright.schema.problem import Layout

_FORWARD = {
    "prefill": (
        ("Llama-3.2-1B qkv", 2048, 3072, 2048),
        ("Llama-3.2-3B down", 4096, 3072, 8192),
        ("Llama-3.1-405B o", 1024, 16384, 16384),
        ("Mistral-Nemo-12B gate+up", 2048, 28672, 5120),
        ("Mistral-Small-24B down", 1536, 5120, 32768),
        ("Qwen2.5-7B gate", 3072, 18944, 3584),
        ("Qwen2.5-14B qkv", 2048, 7168, 5120),
        ("Qwen2.5-32B down", 4096, 5120, 27648),
        ("Gemma-2-9B qkv", 3072, 8192, 3584),
        ("Gemma-3-27B o", 2048, 5376, 4096),
        ("Phi-3-mini qkv", 4096, 9216, 3072),
        ("Phi-4 gate+up", 1024, 35840, 5120),
        ("GLM-4-9B down", 8192, 4096, 13696),
        ("DeepSeek-V3 kv_b", 4096, 32768, 512),
        ("FLUX.1 linear1", 4608, 21504, 3072),
        ("Whisper-large-v3 fc1", 1500, 5120, 1280),
    ),
    "decode": (
        ("Llama-3.1-70B qkv", 1, 10240, 8192),
        ("Llama-3.1-70B down", 4, 8192, 28672),
        ("Mistral-7B o", 8, 4096, 4096),
        ("Qwen2.5-0.5B down", 16, 896, 4864),
        ("Qwen2.5-1.5B gate", 32, 8960, 1536),
        ("Qwen2.5-72B o", 64, 8192, 8192),
        ("Gemma-2-27B up", 2, 36864, 4608),
        ("Gemma-3-4B qkv", 48, 4096, 2560),
        ("Phi-4 qkv", 24, 7680, 5120),
        ("DeepSeek-V3 q_b", 96, 24576, 1536),
        ("DeepSeek-V3 o", 128, 7168, 16384),
        ("Falcon-7B up", 12, 18176, 4544),
    ),
    "tensor parallel": (
        ("Llama-3.1-70B gate+up, TP 8", 2048, 7168, 8192),
        ("Llama-3.1-70B down, TP 8", 4096, 8192, 3584),
        ("Llama-3.1-70B o, TP 8", 64, 8192, 1024),
        ("Llama-3.1-405B qkv, TP 8", 1024, 2304, 16384),
        ("Llama-3.1-405B down, TP 8", 32, 16384, 6656),
        ("Qwen2.5-72B gate+up, TP 4", 512, 14784, 8192),
        ("Mistral-Large gate+up, TP 4", 128, 14336, 12288),
        ("Qwen2.5-32B o, TP 2", 256, 5120, 2560),
    ),
    "experts": (
        ("Mixtral-8x7B w1", 512, 14336, 4096),
        ("Mixtral-8x22B w2", 256, 6144, 16384),
        ("Qwen3-30B-A3B gate+up", 128, 1536, 2048),
        ("Qwen3-235B-A22B down", 192, 4096, 1536),
        ("DeepSeek-V3 expert gate+up", 64, 4096, 7168),
        ("DeepSeek-V3 expert down", 256, 7168, 2048),
        ("OLMoE down", 320, 2048, 1024),
        ("gpt-oss-120b expert gate+up", 96, 5760, 2880),
    ),
    "routers": (
        ("Mixtral-8x7B router", 4096, 8, 4096),
        ("Qwen3-235B-A22B router", 2048, 128, 4096),
        ("DeepSeek-V3 router", 4096, 256, 7168),
        ("Kimi-K2 router", 64, 384, 7168),
    ),
    "heads": (
        ("GPT-2-XL head", 64, 50257, 1600),
        ("Whisper-large-v3 head", 16, 51866, 1280),
        ("BERT-large head", 512, 30522, 1024),
        ("Phi-3-mini head", 1, 32064, 3072),
    ),
}  # fmt: skip
_WEIGHT_GRADIENTS = (
    ("Llama-3-8B o, 512 tokens", 4096, 4096, 512),
    ("Llama-3-8B gate, 1024 tokens", 14336, 4096, 1024),
    ("Mistral-Nemo-12B qkv, 512 tokens", 6144, 5120, 512),
    ("Qwen2.5-7B down, 768 tokens", 3584, 18944, 768),
    ("Gemma-2-9B o, 256 tokens", 3584, 4096, 256),
    ("Phi-3-mini qkv, 1024 tokens", 9216, 3072, 1024),
    ("Qwen3-30B-A3B expert gate+up, 384 tokens", 1536, 2048, 384),
    ("DeepSeek-V3 q_a, 2048 tokens", 1536, 7168, 2048),
)  # fmt: skip
_SMALL_OR_ODD = (
    (1, 1, 4096), (1, 4096, 1), (4096, 1, 4096), (1, 1000, 1000), (2, 3, 5), (7, 7, 7), (16, 16, 65536),
    (33, 65, 129), (64, 64, 64), (100, 100, 100), (127, 129, 1023), (128, 128, 16384), (255, 257, 511),
    (256, 256, 256), (333, 777, 555), (500, 10, 2000), (1023, 1025, 31), (2047, 96, 2049), (3, 8191, 127),
    (65536, 24, 24),
)  # fmt: skip


def _all() -> Iterator[Shape]:
    groups = [(group, Layout.NT, shapes) for group, shapes in _FORWARD.items()]
    groups.append(("weight gradients", Layout.TN, _WEIGHT_GRADIENTS))
    groups.append(("small or odd", Layout.NT, tuple(("", *extents) for extents in _SMALL_OR_ODD)))
    for group, layout, shapes in groups:
        for index, (source, *extents) in enumerate(shapes):
            m, n, k = map(int, extents)
            yield Shape(group, m, n, k, layout, source=str(source), held_out=index % 2 == 1)


UNSEEN: tuple[Shape, ...] = tuple(_all())
