"""Files give out what the networks do."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import ranp
from ranp.errors import TraceError
from tests.exporting.conftest import Example, assert_equal, origin_of, run_onnx, run_pt2

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")


@pytest.mark.parametrize(
    ("name", "slim"),
    [
        ("unet", False),
        ("monai", True),
        pytest.param("mobilenetv2", True, marks=pytest.mark.slow),
        pytest.param("mobilenetv2", False, marks=pytest.mark.slow),
        pytest.param("i3d", True, marks=pytest.mark.slow),
        pytest.param("i3d", False, marks=pytest.mark.slow),
        pytest.param("monai", False, marks=pytest.mark.slow),
    ],
)
def test_an_onnx_file_is_the_network(name, slim, tmp_path):
    example = Example.make(name, slim=slim)
    done = ranp.export(example.model, example.shape, tmp_path / "net.onnx", plan=example.plan)
    assert_equal(example.model, done.path, example.shape)
    assert 0 < done.difference <= 1e-4
    weights = sum(p.numel() for p in example.model.parameters())
    assert done.parameters == weights
    assert done.file_bytes == done.path.stat().st_size
    # Norms become part of convolutions: about as many numbers as weights, and little else.
    assert 0.9 * 4 * weights < done.file_bytes < 4 * weights + 120_000


@pytest.mark.parametrize("name", ["unet", pytest.param("i3d", marks=pytest.mark.slow)])
def test_a_torch_program_is_the_network(name, tmp_path):
    example = Example.make(name, slim=True)
    done = ranp.export(example.model, example.shape, tmp_path / "net.pt2")
    assert_equal(example.model, done.path, example.shape)
    assert done.difference <= 1e-6


@pytest.fixture(scope="module")
def flexible(tmp_path_factory):
    """A slim UNet for volumes of all sizes, in both formats."""
    example, folder = Example.make("unet", slim=True), tmp_path_factory.mktemp("flexible")
    done = {
        suffix: ranp.export(
            example.model, example.shape, folder / f"net{suffix}", dynamic=True, plan=example.plan
        )
        for suffix in (".onnx", ".pt2")
    }
    return example, done


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_dynamic_files_take_other_sizes(flexible, suffix):
    example, done = flexible
    free = ("batch", 1, "depth", "height", "width")
    assert done[suffix].inputs == {"x": free}
    for shape in [(1, 1, 8, 8, 8), (3, 1, 12, 9, 7), (2, 1, 20, 6, 16)]:
        assert_equal(example.model, done[suffix].path, shape)


def test_an_onnx_file_names_its_sizes(flexible):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(flexible[1][".onnx"].path)
    (x,), (y,) = session.get_inputs(), session.get_outputs()
    assert (x.name, x.shape) == ("x", ["batch", 1, "depth", "height", "width"])
    assert y.shape == ["batch", 3, "depth", "height", "width"]


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_a_file_says_where_it_comes_from(flexible, suffix, tmp_path):
    example, done = flexible
    example.plan.save(tmp_path / "plan.json")
    assert origin_of(done[suffix].path) == {
        "schema": 1,
        "kind": "export",
        "versions": {"ranp": ranp.__version__, "torch": torch.__version__},
        "network": None,
        "method": "layerwise",
        "sparsity": 0.5,
        "plan": json.loads((tmp_path / "plan.json").read_text())["sha256"],
    }
    versions = done[suffix].versions
    assert versions["torch"] == torch.__version__
    assert (int(versions.get("opset", 0)) >= 18) is (suffix == ".onnx")


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_a_file_holds_no_paths_of_this_machine(flexible, suffix):
    content = flexible[1][suffix].path.read_bytes()
    assert b"unet3d.py" not in content and b"site-packages" not in content


@pytest.mark.parametrize("suffix", [".pt2", pytest.param(".onnx", marks=pytest.mark.slow)])
def test_a_monai_network_takes_the_sizes_it_can(suffix, tmp_path):
    example = Example.make("monai", slim=True)
    path = tmp_path / f"net{suffix}"
    done = ranp.export(example.model, (1, 1, 16, 16, 16), path, dynamic=True)
    assert_equal(example.model, done.path, (1, 1, 8, 12, 20))


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Conv3d(1, 4, 3, padding=1)
        self.kind = nn.Embedding(5, 4)

    def forward(self, image, kind, scale=1.0):
        x = self.image(image) * scale
        y = x + self.kind(kind)[:, :, None, None, None]
        return {"sum": y, "image": x}


@pytest.mark.parametrize("dynamic", [False, True])
def test_networks_of_several_inputs_and_outputs(dynamic, tmp_path):
    model = TwoInputs().eval()
    image, kind = torch.randn(3, 1, 4, 4, 4), torch.tensor([4, 0, 2])
    given = {"kind": kind, "image": image, "scale": 2.0}
    done = ranp.export(model, given, tmp_path / "net.onnx", dynamic=dynamic)
    assert set(done.inputs) == {"image", "kind"}
    inputs = {"image": image, "kind": kind}
    outputs = run_onnx(done.path, *(inputs[name] for name in done.inputs))
    for output, expected in zip(outputs, model(**given).values(), strict=True):
        assert torch.allclose(output, expected, atol=1e-5)
    if dynamic:
        assert done.inputs["image"][0] == done.inputs["kind"][0] == "batch"


@pytest.mark.parametrize("mode", ["train", "inference"])
def test_an_optimized_network_is_exported_to_torch(mode, tmp_path):
    example = Example.make("unet", slim=True)
    fast = ranp.optimize(example.model, example.shape, mode)
    done = ranp.export(fast, example.shape, tmp_path / "net.pt2")
    assert_equal(example.model, done.path, example.shape)


def test_a_torch_program_needs_no_ranp(flexible):
    """Not even where it was optimized: all is made of PyTorch's own operations."""
    example, _ = flexible
    program = torch.export.export(
        ranp.optimize(example.model.eval(), example.shape, "inference"),
        (torch.rand(example.shape),),
    )
    operations = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert operations and all(name.startswith("aten.") for name in operations)


def test_double_precision_is_for_torch(tmp_path):
    model = nn.Conv3d(1, 2, 3).double()
    with pytest.raises(TraceError, match=r"onnxruntime cannot run what Conv3d does: .*\.pt2"):
        ranp.export(model, (1, 1, 4, 4, 4), tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())
    done = ranp.export(model, (1, 1, 4, 4, 4), tmp_path / "net.pt2")
    x = torch.randn(1, 1, 4, 4, 4, dtype=torch.float64)
    assert torch.equal(run_pt2(done.path, x)[0], model(x))
