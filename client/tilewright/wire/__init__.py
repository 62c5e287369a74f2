"""What travels between client and service: one pydantic model per request and response.

Requests refuse unknown fields; responses tolerate them, so that an older client reads a newer service. The
models load on first use: a client that finds its kernels in the cache needs none of them.
"""

from typing import TYPE_CHECKING, Any

from tilewright.lazy import LazyModule

if TYPE_CHECKING:
    from tilewright.wire.models import *  # noqa: F403
else:
    _models = LazyModule("tilewright.wire.models")

    def __getattr__(name: str) -> Any:
        return getattr(_models, name)
