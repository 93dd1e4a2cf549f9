"""The registry of networks: what it holds, how it is extended, what it refuses."""

from __future__ import annotations

import dataclasses
import json
from importlib.resources import files

import pytest
import torch

from ranp import models
from ranp.errors import UsageError

PAPER = json.loads((files("ranp.experiments") / "paper.json").read_text())


def test_the_registry_holds_the_networks_of_the_paper() -> None:
    assert sorted(models.network_names()) == sorted(PAPER["full"])


@pytest.mark.parametrize("name", PAPER["full"])
def test_specification_says_what_the_paper_says(name: str) -> None:
    spec, full, pruned = (
        models.find_network(name),
        PAPER["full"][name],
        PAPER["data_dependent"][name],
    )
    assert spec.name == name
    assert list(spec.input_shape) == full["input"]
    assert spec.classes == full["classes"]
    assert (spec.sparsity, spec.lam) == (pruned["sparsity"], pruned["lambda"])
    assert name.endswith(spec.dataset)


@pytest.mark.parametrize("name", PAPER["full"])
def test_builder_fits_its_specification(name: str) -> None:
    spec = models.find_network(name)
    with torch.device("meta"):
        out = models.build_network(name).eval()(torch.empty(spec.input_shape))
    spatial = spec.input_shape[2:] if name.startswith("unet") else ()
    assert out.shape == (1, spec.classes, *spatial)


def test_specifications_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        models.find_network("i3d-ucf101").classes = 3  # type: ignore[misc]


@pytest.mark.parametrize("function", [models.find_network, models.build_network])
def test_unknown_name_is_refused_with_a_suggestion(function: object) -> None:
    with pytest.raises(
        UsageError, match=r"^unknown network 'unet3d-brat'. Did you mean 'unet3d-brats'\?$"
    ):
        function("unet3d-brat")  # type: ignore[operator]


def test_unknown_name_far_from_all_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"^unknown network 'xyz'. Known: i3d, i3d-ucf101, "):
        models.find_network("xyz")


def test_a_network_of_ones_own_registers_itself_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models.registry, "NETWORKS", models.NETWORKS.copy())
    register = models.register_network("tiny", options={"out_channels": 2}, input_shape=(1, 1, 8))
    assert register(torch.nn.Conv1d) is torch.nn.Conv1d
    network = models.build_network("tiny", in_channels=1, kernel_size=3)
    assert network.weight.shape == (2, 1, 3)
    assert models.network_names()[-1] == "tiny"
    with pytest.raises(UsageError, match=r"^network 'tiny' is already registered"):
        register(torch.nn.Conv2d)


def test_options_that_a_network_does_not_take_are_refused() -> None:
    with pytest.raises(UsageError, match=r"^network 'unet3d' with \{'width': 8\}: .*'width'"):
        models.build_network("unet3d", width=8)


@pytest.mark.parametrize("name", models.__all__)
def test_everything_exported_exists(name: str) -> None:
    assert getattr(models, name) is not None
