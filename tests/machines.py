"""What tests may ask of the machine they run on."""

from __future__ import annotations

import os

import pytest
import torch


def onednn_kernels() -> str:
    """Return the widest vectors of oneDNN here; unlike ATen it reads `ONEDNN_MAX_CPU_ISA`."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    if torch.cpu._is_avx512_supported() and not limit.startswith(("SSE", "AVX2")):
        return "AVX512"
    return "AVX2" if torch.cpu._is_avx2_supported() and not limit.startswith("SSE") else "SSE"


on_avx2 = pytest.mark.skipif(
    onednn_kernels() != "AVX2", reason="what kernels take was measured with oneDNN's for AVX2"
)
