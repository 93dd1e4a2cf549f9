"""Mixed precision as Fabric and Lightning have it: forward in autocast, weights in float32."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

Precision = Literal["32", "bf16", "16"]
DTYPES = {"32": torch.float32, "bf16": torch.bfloat16, "16": torch.float16}
_LOW = (torch.bfloat16, torch.float16)

# Autocast on a CPU and on CUDA cast the same operations down. They do not agree on what runs in
# float32: these do on CUDA only (in ATen/autocast_mode.h), those on a CPU only.
_FLOAT32_ON_CUDA = frozenset(
    (
        *("softmax", "log_softmax", "layer_norm", "group_norm", "rms_norm"),
        *("exp", "log", "pow", "sum", "softplus"),
        *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
        *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
        *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"),
        "upsample_bicubic2d",
    )
)
_FLOAT32_ON_CPU = frozenset(
    ("avg_pool3d", "max_pool3d", "adaptive_avg_pool3d", "adaptive_max_pool3d", "grid_sampler")
)


class CudaAutocastRules(TorchFunctionMode):
    """Makes autocast on a CPU follow the rules that it has on CUDA."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function in the precision that it has on CUDA."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        differs = name in _FLOAT32_ON_CUDA or name in _FLOAT32_ON_CPU
        if not differs or not torch.is_autocast_enabled("cpu"):
            return func(*args, **kwargs)
        if name in _FLOAT32_ON_CUDA:
            args, kwargs = pytree.tree_map_only(
                Tensor, lambda t: t.float() if t.dtype in _LOW else t, (args, kwargs)
            )
        with torch.autocast("cpu", enabled=False):
            return func(*args, **kwargs)
