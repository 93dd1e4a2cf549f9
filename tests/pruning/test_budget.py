from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from ranp.errors import InfeasibleError
from ranp.graph import build_graph
from ranp.models import build_network
from ranp.pruning import Choice, Chooser, make_forward
from ranp.pruning.search import DELTA, floor_sparsity, meet_budget, smallest_sparsity
from ranp.resources import count
from ranp.resources.budgets import Budget, parse_budget
from tests.pruning.nets import score

SHAPE = (1, 1, 32, 32, 32)


@pytest.fixture(scope="module")
def scored():
    torch.manual_seed(0)
    model = build_network("unet3d-shapenet")
    graph = build_graph(model, SHAPE)
    batches = [(torch.randn(SHAPE), torch.randint(0, 50, (1, 32, 32, 32)))]
    return model, graph, score(model, graph, batches, make_forward(F.cross_entropy, None))


@pytest.mark.parametrize("method", ["ranp-f", "ranp-m", "weighted", "layerwise", "random", "flat"])
@pytest.mark.parametrize("share", [0.5, 0.1])
def test_every_method_comes_near_a_share_of_the_flops(scored, method, share):
    model, graph, scores = scored
    chooser = Chooser(model, graph, Choice.make(method), scores)
    budget = share * count(model, graph).gflops
    sparsity, alive = meet_budget(chooser, [Budget("gflops", budget)])
    assert not graph.empty_layers(alive)
    reached = count(model, graph, alive).gflops
    more = count(model, graph, chooser.choose(sparsity - 2 * DELTA)).gflops
    assert 0.98 * budget <= reached <= budget < more


def test_all_budgets_are_kept_and_one_is_filled(scored):
    model, graph, _ = scored
    chooser = Chooser(model, graph, Choice.make("layerwise"))
    full = count(model, graph)
    budgets = [parse_budget("flops", "20%"), parse_budget("params", "10%")]
    _, alive = meet_budget(chooser, budgets)
    slim = count(model, graph, alive)
    taken = (slim.gflops / full.gflops / 0.2, slim.parameters / full.parameters / 0.1)
    assert 0.997 <= max(taken) <= 1


def test_channel_counts_stay_multiples_within_a_budget(scored):
    model, graph, _ = scored
    chooser = Chooser(model, graph, Choice.make("layerwise", multiple=8))
    _, alive = meet_budget(chooser, [parse_budget("flops", "20%")])
    removable = {n for n, each in graph.layers.items() if graph.removable[each.neurons].any()}
    assert {len(kept) % 8 for name, kept in graph.kept(alive).items() if name in removable} == {0}
    assert count(model, graph, alive).gflops <= 0.2 * count(model, graph).gflops


def test_a_method_with_scores_keeps_to_its_ranking(scored):
    model, graph, scores = scored
    chooser = Chooser(model, graph, Choice.make("ranp-f"), scores)
    sparsity, alive = meet_budget(chooser, [parse_budget("flops", "7%")])
    assert (alive == chooser.choose(sparsity)).all()


@pytest.mark.parametrize("method", ["layerwise", "random"])
@pytest.mark.parametrize("share", [0.5, 0.1, 0.03])
def test_neurons_given_back_one_by_one_fill_a_budget(scored, method, share):
    model, graph, scores = scored
    chooser = Chooser(model, graph, Choice.make(method, floor=1), scores)
    budget = share * count(model, graph).gflops
    sparsity, alive = meet_budget(chooser, [parse_budget("flops", f"{100 * share}%")])
    reached = count(model, graph, alive).gflops
    assert count(model, graph, chooser.choose(sparsity)).gflops <= reached
    assert 0.997 * budget <= reached <= budget
    # Nothing but neurons next in line was given back.
    narrow, wide = chooser.choose(sparsity), chooser.choose(sparsity - 0.02)
    assert (narrow <= alive).all() and (alive <= (wide | narrow)).all()


def test_the_smallest_sparsity_keeps_a_budget_and_a_little_less_does_not(scored):
    model, graph, scores = scored
    chooser = Chooser(model, graph, Choice.make("ranp-f"), scores)
    limit = 0.3 * count(model, graph).parameters

    def keeps(alive):
        return count(model, graph, alive).parameters <= limit

    sparsity = smallest_sparsity(chooser, keeps)
    assert keeps(chooser.choose(sparsity))
    assert not keeps(chooser.choose(sparsity - 2e-4))


def test_a_budget_that_is_kept_already_needs_no_pruning(scored):
    model, graph, scores = scored
    assert (
        smallest_sparsity(Chooser(model, graph, Choice.make("weighted"), scores), lambda a: True)
        == 0
    )


def test_a_budget_out_of_reach_names_the_nearest_figure(scored):
    model, graph, scores = scored
    chooser = Chooser(model, graph, Choice.make("vanilla"), scores)
    most = chooser.max_sparsity()
    nearest = count(model, graph, chooser.choose(most)).gflops
    assert smallest_sparsity(chooser, lambda alive: False) is None
    with pytest.raises(InfeasibleError, match=f"{floor_sparsity(most)}.*{nearest:.2f} GFLOPs"):
        meet_budget(chooser, [Budget("gflops", nearest / 2)])
