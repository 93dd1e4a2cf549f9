from __future__ import annotations

import pytest
import torch


@pytest.fixture
def one_thread():
    """Which kernels PyTorch chooses on a CPU depends on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
