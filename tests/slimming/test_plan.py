from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from ranp.errors import IntegrityError, UsageError
from ranp.files import write_sealed_json
from ranp.graph import build_graph
from ranp.models.unet3d import UNet3D
from ranp.slimming import KeptLayer, Plan, load_weights, save_weights, slim_model
from tests.oracle import random_alive, unchanged

INPUT = (1, 1, 16, 16, 16)


def unet(in_channels: int = 1, classes: int = 5) -> UNet3D:
    return UNet3D(in_channels, classes, levels=3, base_width=8)


@pytest.fixture(scope="module")
def plan() -> Plan:
    graph = build_graph(unet(), INPUT)
    return Plan.make(graph, random_alive(graph, 0.5), method="random", settings={"sparsity": 0.5})


def widths(model: nn.Module) -> list[int]:
    return [m.out_channels for m in model.modules() if isinstance(m, nn.Conv3d)]


def test_save_load_apply_rebuilds_the_same_network(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    model = unet()
    with unchanged(model):
        slim = loaded.apply(model)
    assert widths(slim) == [len(layer.kept) for layer in plan.layers.values()]
    again = plan.apply(unet())
    for a, b in zip(slim.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)  # fresh weights depend on the seed alone


def test_a_plan_goes_through_plain_values(plan):
    stored = json.loads(json.dumps(plan.to_dict()))
    loaded = Plan.from_dict(stored)
    assert loaded == plan and loaded.sha256 == plan.sha256
    del stored["layers"]
    with pytest.raises(
        IntegrityError, match=r"plan the mapping is not valid: field 'layers': Field required"
    ):
        Plan.from_dict(stored)
    with pytest.raises(IntegrityError, match=r"my file is a None of schema None"):
        Plan.from_dict({}, "my file")


def test_a_graph_that_is_there_already_saves_tracing(plan, monkeypatch):
    model = unet()
    graph = build_graph(model, INPUT)
    expected = plan.apply(model)

    def traces(*args, **kwargs):
        raise AssertionError("traced again")

    monkeypatch.setattr("ranp.slimming.plan.build_graph", traces)
    slim = plan.apply(model, graph=graph)
    for a, b in zip(slim.parameters(), expected.parameters(), strict=True):
        assert torch.equal(a, b)


def test_keep_copies_the_weights_of_kept_neurons(plan):
    model = unet()
    slim = plan.apply(model, init="keep")
    kept = list(plan.layers["encoder.0.conv1"].kept)
    assert torch.equal(slim.encoder[0].conv1.weight, model.encoder[0].conv1.weight[kept])
    feeding, inner = kept, list(plan.layers["encoder.0.conv2"].kept)
    expected = model.encoder[0].conv2.weight[inner][:, feeding]
    assert torch.equal(slim.encoder[0].conv2.weight, expected)


@pytest.mark.parametrize("init", ["fresh", "orthogonal"])
def test_new_weights_are_new_and_of_their_kind(plan, init):
    model = unet()
    slim = plan.apply(model, init=init)
    weight = slim.decoder[0].conv1.weight.detach()
    kept = list(plan.layers["decoder.0.conv1"].kept)
    assert not any(torch.equal(row, old) for row in weight for old in model.decoder[0].conv1.weight)
    assert len(kept) == len(weight)
    assert torch.equal(slim.encoder[0].norm1.weight, torch.ones_like(slim.encoder[0].norm1.weight))
    rows = weight.flatten(1)
    gram = rows @ rows.T
    orthogonal = torch.allclose(gram, torch.eye(len(rows)), atol=1e-5)
    assert orthogonal == (init == "orthogonal")


def test_unknown_init(plan):
    with pytest.raises(UsageError, match=r"init must be one of .* got 'zeros'"):
        plan.apply(unet(), init="zeros")


def test_device_dtype_mode_and_frozen_parameters_carry_over(plan):
    model = unet().double().eval()
    model.encoder[0].conv1.weight.requires_grad_(False)
    slim = plan.apply(model)
    assert {p.dtype for p in slim.parameters()} == {torch.float64}
    assert not any(m.training for m in slim.modules())
    frozen = [name for name, p in slim.named_parameters() if not p.requires_grad]
    assert frozen == ["encoder.0.conv1.weight"]


def test_another_network_is_refused_by_its_first_difference(plan):
    with pytest.raises(IntegrityError, match=r"'encoder.0.conv1.weight' is \(4, 1, 3, 3, 3\)"):
        plan.apply(UNet3D(1, 5, levels=3, base_width=16))
    with pytest.raises(IntegrityError, match=r"'decoder.0.conv1.weight' is"):
        plan.apply(UNet3D(1, 5, levels=4, base_width=8))


def test_transfer_exchanges_first_inputs_and_last_classes(plan):
    with pytest.raises(IntegrityError):
        plan.apply(unet(4, 7))
    slim = plan.apply(unet(4, 7), transfer=True)
    inner = [len(layer.kept) for layer in plan.layers.values()][:-1]
    assert widths(slim) == [*inner, 7]
    assert slim(torch.rand(1, 4, 16, 16, 16)).shape == (1, 7, 16, 16, 16)
    with pytest.raises(IntegrityError, match=r"encoder\.0\.conv1"):
        plan.apply(UNet3D(4, 7, levels=3, base_width=16), transfer=True)


def residual() -> nn.Module:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv1d(1, 4, 1), nn.Conv1d(4, 4, 1), nn.Conv1d(4, 2, 1)

        def forward(self, x):
            x = self.a(x)
            return self.c(x + self.b(x))

    return Residual()


def test_a_plan_that_contradicts_itself_is_refused():
    graph = build_graph(residual(), (1, 1, 8))
    plan = Plan.make(graph, random_alive(graph, 0.5), method="random", settings={})
    kept = plan.layers["a"].kept
    assert plan.layers["b"].kept == kept
    other = tuple(sorted({0, 1, 2, 3} - set(kept)))
    wrong = replace(plan, layers={**plan.layers, "b": KeptLayer(4, other)})
    with pytest.raises(IntegrityError, match="'b' and 'a' are tied"):
        wrong.apply(residual())
    pruned_output = replace(plan, layers={**plan.layers, "c": KeptLayer(2, (0,))})
    with pytest.raises(IntegrityError, match="contradicts"):
        pruned_output.apply(residual())
    missing = replace(plan, layers={k: v for k, v in plan.layers.items() if k != "b"})
    with pytest.raises(IntegrityError, match="only the network has a layer 'b'"):
        missing.apply(residual())


def test_files_that_are_no_plans_are_refused(plan, tmp_path):
    path = tmp_path / "plan.json"
    with pytest.raises(UsageError, match="does not exist"):
        Plan.load(path)
    path.write_text('{"kind": "plan"}')
    with pytest.raises(IntegrityError, match="SHA-256"):
        Plan.load(path)
    write_sealed_json(path, {"kind": "checkpoint", "schema": 1})
    with pytest.raises(IntegrityError, match="is a checkpoint"):
        Plan.load(path)
    plan.save(path)
    content = json.loads(path.read_text())
    content["layers"][0]["kept"].pop()
    path.write_text(json.dumps(content))
    with pytest.raises(IntegrityError, match="was changed"):
        Plan.load(path)


def test_weights_round_trip(plan, tmp_path):
    slim, other = plan.apply(unet(), seed=0), plan.apply(unet(), seed=1)
    save_weights(slim, tmp_path / "w.safetensors")
    load_weights(other, tmp_path / "w.safetensors")
    x = torch.rand(INPUT)
    assert torch.equal(slim.eval()(x), other.eval()(x))


def test_weights_of_another_network_change_nothing(plan, tmp_path):
    slim, full = plan.apply(unet()), unet()
    save_weights(full, tmp_path / "w.safetensors")
    with unchanged(slim), pytest.raises(IntegrityError, match=r"'encoder\.0\.conv1\.weight' is"):
        load_weights(slim, tmp_path / "w.safetensors")


def test_shared_weights_are_saved_once_and_stay_shared(tmp_path):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv1d(4, 4, 1), nn.Conv1d(4, 4, 1), nn.Conv1d(4, 1, 1)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.c(self.b(torch.relu(self.a(x))))

    model, other = Tied(), Tied()
    save_weights(model, tmp_path / "w.safetensors")
    load_weights(other, tmp_path / "w.safetensors")
    assert other.b.weight is other.a.weight
    assert torch.equal(other.a.weight, model.a.weight)


def test_several_inputs_by_name(tmp_path):
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv1d(1, 4, 1), nn.Conv1d(2, 4, 1), nn.Conv1d(8, 1, 1)

        def forward(self, left, right, scale=1.0):
            return self.c(torch.cat([self.a(left), self.b(right)], 1)) * scale

    example = {"left": torch.rand(1, 1, 8), "right": torch.rand(1, 2, 8), "scale": 2.0}
    graph = build_graph(Two(), example)
    plan = Plan.make(graph, random_alive(graph, 0.5), method="random", settings={})
    plan.save(tmp_path / "plan.json")
    slim = Plan.load(tmp_path / "plan.json").apply(Two())
    assert slim(**example).shape == (1, 1, 8)
    assert slim.c.in_channels == 4


def test_slimming_needs_the_graph_of_this_model():
    graph = build_graph(unet(), INPUT)
    with pytest.raises(IntegrityError, match="another network"):
        slim_model(unet(1, 6), graph, graph.all_alive())
