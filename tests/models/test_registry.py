"""Names and shapes without torch, builders on demand, helpful refusals."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from importlib.resources import files

import pytest
import torch

from ranp import models
from ranp.errors import UsageError

PAPER = json.loads((files("ranp.experiments") / "paper.json").read_text())


def test_the_registry_holds_the_networks_of_the_paper() -> None:
    assert list(models.names()) == list(PAPER["full"])


@pytest.mark.parametrize("name", PAPER["full"])
def test_specification_says_what_the_paper_says(name: str) -> None:
    spec, full, pruned = models.spec(name), PAPER["full"][name], PAPER["data_dependent"][name]
    assert spec.name == name
    assert list(spec.input_shape) == full["input"]
    assert spec.classes == full["classes"]
    assert (spec.sparsity, spec.reweighting) == (pruned["sparsity"], pruned["lambda"])
    assert name.endswith(spec.dataset)


@pytest.mark.parametrize("name", PAPER["full"])
def test_builder_fits_its_specification(name: str) -> None:
    spec = models.spec(name)
    with torch.device("meta"):
        out = models.build(name).eval()(torch.empty(spec.input_shape))
    spatial = spec.input_shape[2:] if name.startswith("unet") else ()
    assert out.shape == (1, spec.classes, *spatial)


def test_specifications_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        models.spec("i3d-ucf101").classes = 3  # type: ignore[misc]


@pytest.mark.parametrize("function", [models.spec, models.build])
def test_unknown_name_is_refused_with_a_suggestion(function: object) -> None:
    with pytest.raises(
        UsageError, match=r"^unknown network 'unet3d-brat'. Did you mean 'unet3d-brats'\?$"
    ):
        function("unet3d-brat")  # type: ignore[operator]


def test_unknown_name_far_from_all_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"^unknown network 'xyz'. Known: i3d-ucf101, "):
        models.spec("xyz")


def test_names_and_shapes_are_known_without_torch() -> None:
    program = (
        "import sys; from ranp import models;"
        "shapes = [models.spec(name).input_shape for name in models.names()];"
        "print(len(shapes), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["5", "False"]), done.stderr


@pytest.mark.parametrize("name", models.__all__)
def test_everything_exported_exists(name: str) -> None:
    assert getattr(models, name).__name__ == name


def test_unknown_attribute_raises() -> None:
    with pytest.raises(AttributeError, match=r"'ranp.models' has no attribute 'UNet2D'"):
        models.UNet2D  # noqa: B018
