"""What `export` leaves alone, and what it refuses."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

import ranp
from ranp.errors import IntegrityError, TraceError, UsageError
from ranp.exporting import FORMATS, load_exported, time_exported
from ranp.exporting.arguments import Arguments, scaled
from ranp.exporting.capture import capture
from tests.exporting.conftest import Example
from tests.oracle import unchanged

SHAPE = (1, 1, 4, 4, 4)


def small() -> nn.Module:
    return nn.Sequential(nn.Conv3d(1, 3, 3, padding=1), nn.BatchNorm3d(3), nn.Dropout(), nn.ReLU())


def test_the_network_is_given_back_as_it_was(tmp_path):
    model = small().train()
    model[1].eval()
    calls = []
    model[0].register_forward_hook(lambda module, args, output: calls.append(output.shape))
    nn.functional.mse_loss(model(torch.randn(SHAPE)), torch.zeros(1, 3, 4, 4, 4)).backward()
    state = torch.get_rng_state()
    with unchanged(model):
        ranp.export(model, SHAPE, tmp_path / "net.pt2", dynamic=True)
    assert torch.equal(torch.get_rng_state(), state)
    assert model[0].training and not model[1].training and model[2].training
    assert len(calls) > 1 and len(model[0]._forward_hooks) == 1


def test_a_wrapped_network_is_exported_without_its_wrapper(tmp_path):
    model = small().eval()
    done = ranp.export(nn.DataParallel(model), SHAPE, tmp_path / "net.pt2")
    x = torch.randn(SHAPE)
    assert torch.equal(torch.export.load(done.path).module()(x), model(x))


@pytest.mark.parametrize(
    ("change", "by"),
    [
        (lambda y: 1.01 * y, "1e-02"),
        (lambda y: y + float("nan"), "inf"),
        (lambda y: y[:, :1], "inf"),
        (lambda y: y.flip(2), r"\de[-+]0\d"),
    ],
)
def test_a_file_that_differs_is_not_kept(change, by, tmp_path, monkeypatch):
    path = tmp_path / "net.pt2"
    path.write_text("the one before")
    right = FORMATS["pt2"]

    def wrong(content):
        run = right.open(content)
        return lambda arguments: [change(y) for y in run(arguments)]

    monkeypatch.setitem(FORMATS, "pt2", replace(right, open=wrong))
    with pytest.raises(IntegrityError, match=rf"outputs in torch.export differ .* by {by} of the"):
        ranp.export(small(), SHAPE, path)
    assert path.read_text() == "the one before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_does_not_run_is_not_kept(tmp_path, monkeypatch):
    def breaks(content):
        def run(arguments):
            raise RuntimeError("no such luck")

        return run

    monkeypatch.setitem(FORMATS, "pt2", replace(FORMATS["pt2"], open=breaks))
    with pytest.raises(IntegrityError, match=r"\(1, 1, 4, 4, 4\).*RuntimeError: no such luck"):
        ranp.export(small(), SHAPE, tmp_path / "net.pt2")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("net.pth", r"does not tell the format; use a name that ends in \.onnx or \.pt2"),
        ("net", "use a name that ends in"),
        ("there.pt2", "is a directory; name the file to write in it"),
        ("file/net.pt2", "cannot use .* as an output directory"),
    ],
)
def test_paths_that_cannot_be_written(name, message, tmp_path):
    (tmp_path / "there.pt2").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=message):
        ranp.export(small(), SHAPE, tmp_path / name)


def test_a_format_can_be_named(tmp_path):
    done = ranp.export(small(), SHAPE, tmp_path / "net", format="pt2")
    assert done.format == "pt2" and load_exported(done.path, "pt2")
    with pytest.raises(UsageError, match="unknown format 'tflite': use onnx or pt2"):
        ranp.export(small(), SHAPE, tmp_path / "net", format="tflite")


@pytest.mark.parametrize("missing", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named_before_anything_is_done(missing, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UsageError, match=rf'need {missing}: pip install "ranp\[export\]"'):
        ranp.export(small(), SHAPE, tmp_path / "net.onnx")
    assert ranp.export(small(), SHAPE, tmp_path / "net.pt2").file_bytes


class Choosing(nn.Conv3d):
    def forward(self, x):
        y = super().forward(x)
        return y if y.mean() > 0 else -y


class Drawing(nn.Conv3d):
    def forward(self, x):
        return super().forward(x + torch.randn_like(x))


class Flattening(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 2)

    def forward(self, x):
        return self.linear(x.flatten(1))


def test_a_forward_that_depends_on_values_is_refused(tmp_path, capfd):
    with pytest.raises(TraceError, match="Choosing cannot be exported: ") as caught:
        ranp.export(Choosing(1, 2, 3), SHAPE, tmp_path / "net.pt2")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


class Remembering(nn.Conv3d):
    """Leaves a result in the module, as networks with deep supervision do."""

    heads = ()

    def forward(self, x):
        x += 1  # and works in place on what it is given
        self.heads = [super().forward(x)]
        return self.heads[0].relu()


def test_a_forward_that_leaves_things_behind(tmp_path):
    model = Remembering(1, 2, 3).eval()
    done = ranp.export(model, SHAPE, tmp_path / "net.pt2")
    x = torch.randn(SHAPE)
    assert type(model.heads[0]) is torch.Tensor  # a real one, of the network's own run
    assert torch.equal(torch.export.load(done.path).module()(x.clone()), model(x.clone()))


def test_an_input_that_the_network_does_not_take(tmp_path):
    message = r"forward of Sequential fails with an input \(1, 2, 4, 4, 4\): .*check the example"
    with pytest.raises(TraceError, match=message):
        ranp.export(small(), (1, 2, 4, 4, 4), tmp_path / "net.pt2")


def test_a_network_of_one_size_cannot_be_dynamic(tmp_path):
    with pytest.raises(UsageError, match=r"Flattening .*export it without dynamic"):
        ranp.export(Flattening(), SHAPE, tmp_path / "net.pt2", dynamic=True)
    assert ranp.export(Flattening(), SHAPE, tmp_path / "net.pt2").difference <= 1e-6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.to("meta"), r"is on 'meta': files are for the CPU; give model.cpu\(\)"),
        (lambda m: m.bfloat16(), r"numbers of torch.bfloat16: .*give model.float\(\)"),
        (lambda m: m.apply(_poison), "non-finite outputs"),
    ],
)
def test_networks_that_are_refused(change, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        ranp.export(change(small()), SHAPE, tmp_path / "net.pt2")
    assert not list(tmp_path.iterdir())


def _poison(module: nn.Module) -> None:
    if isinstance(module, nn.Conv3d):
        nn.init.constant_(module.bias, float("inf"))


def test_a_network_that_draws_random_numbers_cannot_be_compared(tmp_path):
    model = Drawing(1, 2, 3)
    state = torch.get_rng_state()
    with pytest.raises(UsageError, match="draws random numbers in eval mode"):
        ranp.export(model, SHAPE, tmp_path / "net.pt2")
    assert not list(tmp_path.iterdir()) and torch.equal(torch.get_rng_state(), state)


def test_a_size_of_one_tells_too_little(tmp_path):
    with pytest.raises(UsageError, match=r"\(1, 1, 4, 1, 4\) has a size of 1"):
        ranp.export(small(), (1, 1, 4, 1, 4), tmp_path / "net.pt2", dynamic=True)


@pytest.mark.parametrize("suffix", ["pt2", "onnx"])
def test_damaged_files(suffix, tmp_path):
    pytest.importorskip("onnxruntime")
    path = tmp_path / f"net.{suffix}"
    with pytest.raises(UsageError, match="cannot read"):
        load_exported(path)
    path.write_bytes(b"not a network")
    with pytest.raises(IntegrityError, match=r"cannot open .*; export it again"):
        load_exported(path)


def test_times_are_taken_in_turns(tmp_path):
    example = Example(small(), SHAPE, None)
    done = ranp.export(example.model, SHAPE, tmp_path / "net.pt2")
    ticks = itertools.count()
    with unchanged(example.model):
        times = time_exported(
            example.model, done, SHAPE, repetitions=3, clock=lambda: float(next(ticks))
        )
    assert list(times["runs"]) == ["PyTorch", "torch.export"]
    assert all(run["times"] == [1.0, 1.0, 1.0] for run in times["runs"].values())
    assert times["shape"] == list(SHAPE)
    assert next(ticks) == 12


def test_sizes_that_are_tried():
    assert scaled(3)((1, 4, 8, 8, 6)) == (3, 4, 8, 8, 6)
    assert scaled(3, 0.5)((1, 4, 8, 9, 1)) == (3, 4, 4, 4, 1)
    assert scaled(3, 0.5)((1, 7)) == (3, 7)
    assert scaled(3, 0.5)((1,)) == (3,)
    assert scaled(3, 0.5)(()) == ()


def test_random_inputs_leave_whole_numbers_alone():
    arguments = Arguments((torch.zeros(2, 3), torch.tensor([4, 7]), 5), {})
    drawn = arguments.with_random_values(0, lambda sizes: (3, *sizes[1:]))
    assert drawn.tensors[0].shape == (3, 3) and drawn.tensors[0].std() > 0.1
    assert drawn.tensors[1].tolist() == [4, 7, 4]
    assert drawn.args[2] == 5
    assert torch.equal(
        drawn.tensors[0], arguments.with_random_values(0, lambda s: (3, *s[1:])).tensors[0]
    )


class _ReadAgain(nn.Module):
    """What is changed in place is read afterwards, under another name."""

    def __init__(self, through):
        super().__init__()
        self.first, self.through = nn.Conv3d(1, 3, 3, padding=1), through

    def forward(self, x):
        y = self.first(x)
        return self.through(y).relu_() - 2 * y


def test_activations_in_place_are_captured_in_new_memory():
    model = nn.Sequential(
        nn.Conv3d(1, 3, 3), nn.InstanceNorm3d(3, affine=True), nn.LeakyReLU(inplace=True)
    )
    program = capture(model.eval(), Arguments.of(model, SHAPE), dynamic=False)
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert called == [
        "aten.conv3d.default",
        "aten.instance_norm.default",
        "aten.leaky_relu.default",
    ]


@pytest.mark.parametrize("through", [nn.Identity(), nn.Dropout(), nn.Unflatten(1, (3,))], ids=str)
def test_what_is_changed_in_place_and_read_again_stays_changed(through, tmp_path):
    model = _ReadAgain(through).eval()
    x = torch.randn(SHAPE)
    y = model.first(x).relu()
    assert torch.allclose(model(x), -y)
    done = ranp.export(model, SHAPE, tmp_path / "net.pt2")
    assert torch.allclose(torch.export.load(done.path).module()(x), -y, atol=1e-6)
