"""MONAI's networks as ONNX files: all but four."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import ranp
from ranp.errors import RanpError, TraceError, UsageError
from tests.zoo.case import Case
from tests.zoo.monai_networks import NETWORKS

REFUSED: dict[str, tuple[type[RanpError], str]] = {
    "monai: ResNet, shortcut A": (TraceError, "cannot be exported"),  # reads .data in its forward
    "monai: DiNTS": (TraceError, "data-dependent"),
    "monai: GlobalNet": (TraceError, "expected scalar type Double"),  # of a grid of its own
    "monai: AutoencoderKL": (UsageError, "draws random numbers"),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # of MONAI, while it builds them
@pytest.mark.parametrize("case", NETWORKS, ids=lambda case: case.name)
def test_a_monai_network_is_exported(case: Case, tmp_path):
    pytest.importorskip("monai")
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    model = case.build()
    inputs = tuple(
        x.float() if isinstance(x, Tensor) and x.is_floating_point() else x for x in case.inputs()
    )
    path = tmp_path / "net.onnx"
    if case.name in REFUSED:
        kind, message = REFUSED[case.name]
        with pytest.raises(kind, match=message):
            ranp.export(model, inputs, path)
        assert not path.exists()
    else:
        assert ranp.export(model, inputs, path).difference <= 1e-5
