"""Every row of the paper that follows from rules alone comes out to the printed digits."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

PAPER = json.loads((files("ranp.experiments") / "paper.json").read_text())
FIGURES = ("gflops", "param_mb", "memory_mb")


def assert_printed(found: dict, row: dict) -> None:
    """Every figure to its last printed digit; one of all was rounded twice (see its note)."""
    for figure in FIGURES:
        shown = f"{found[figure]:.2f}"
        if figure == "param_mb" and "4.555" in row.get("note", ""):
            assert f"{found[figure]:.3f}" == "4.555"
            shown = "4.56"
        assert shown == f"{row[figure]:.2f}", figure


@pytest.mark.parametrize("network", PAPER["full"])
def test_full(ranp, network):
    row = PAPER["full"][network]
    shape = ",".join(map(str, row["input"]))
    outcome = ranp("profile", network, "--input", shape, "--json")
    assert outcome.code == 0
    for figure in FIGURES:
        assert f"{outcome.json[figure]:.2f}" == f"{row[figure]:.2f}"
    if "neurons" in row:
        assert outcome.json["neurons"] == row["neurons"]
    layers = outcome.json["layers"]
    assert sum(layer["gflops"] for layer in layers) == pytest.approx(outcome.json["gflops"])
    assert sum(layer["neurons"] for layer in layers) == outcome.json["neurons"]


# All rows come out of cells of `ranp reproduce`, too: here is one of each by the command.
@pytest.mark.parametrize("network", ["mobilenetv2-ucf101"])
def test_layerwise(ranp, network):
    row = PAPER["layerwise"][network]
    outcome = ranp(
        "prune", network, "--method", "layerwise", "--sparsity", row["sparsity"], "--json"
    )
    assert outcome.code == 0
    assert_printed(outcome.json["slim"], row)
    for figure in FIGURES:
        assert f"{outcome.json['full'][figure]:.2f}" == f"{PAPER['full'][network][figure]:.2f}"
    assert outcome.json["feasible"] is True


@pytest.mark.parametrize("network", ["unet3d-brats"])
def test_random(ranp, network):
    row = PAPER["random"][network]
    outcome = ranp("prune", network, "--method", "random", "--sparsity", row["sparsity"], "--json")
    assert outcome.code == 0
    assert_printed(outcome.json["slim"], row)
    kept = sum(layer["kept"] for layer in outcome.json["layers"])
    assert kept == outcome.json["slim"]["neurons"]
