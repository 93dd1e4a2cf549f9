from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn import functional as F


@pytest.fixture(autouse=True)
def one_thread():
    """Which kernels PyTorch chooses on a CPU depends on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(
        OrderedDict(
            first=block(2, 16), second=block(16, 24), third=block(24, 16), head=nn.Conv3d(16, 3, 1)
        )
    )


def block(inputs, outputs):
    convolutions = (
        nn.Conv3d(inputs, outputs, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv3d(outputs, outputs, 3, padding=1),
        nn.ReLU(inplace=True),
    )
    return nn.Sequential(*convolutions)


@pytest.fixture
def loader():
    """Crops of 8^3, two at a time."""
    random = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(2, 2, 8, 8, 8, generator=random),
            torch.randint(0, 3, (2, 8, 8, 8), generator=random),
        )
        for _ in range(2)
    ]


@pytest.fixture
def loss():
    return F.cross_entropy
