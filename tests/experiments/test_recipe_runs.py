from __future__ import annotations

import pytest

from ranp.errors import UsageError
from ranp.experiments.cells import TrainingCells, store_budget
from ranp.experiments.evaluation import evaluate
from ranp.experiments.jobs import complete_cells
from ranp.experiments.matching import absolute_budget, parse_budget_text
from ranp.experiments.recipe_runs import make_recipe_runs, seconds_left
from ranp.report.comparison_tables import sentences
from ranp.resources import Costs
from ranp.resources.counting import LayerCost
from ranp.training.networks import build_network
from ranp.trials.store import Store
from tests.experiments.comparisons import compared, design, filled, outcome

# Eight GFLOPs, 8 MB of activations, eight parameters.
LAYER = LayerCost("conv", "Conv3d", flops=8 * 10**9, parameters=8, activations=2 * 2**20, neurons=8)
FULL = Costs("paper", (LAYER,), ())


@pytest.mark.parametrize(
    ("text", "resource", "amount"),
    [
        ("gflops=10%", "gflops", 0.8),
        ("flops=10%", "gflops", 0.8),
        ("gflops=0.5", "gflops", 0.5),
        ("flops=0.5GFLOPs", "gflops", 0.5),
        ("activations=2.5MiB", "memory", 2.5),
        ("activations=50%", "memory", 4.0),
        ("params=1e0", "params", 1.0),
    ],
)
def test_budgets_are_read(text, resource, amount):
    stored = store_budget(absolute_budget(text, FULL))
    assert stored == {"resource": resource, "amount": pytest.approx(amount)}


def test_flops_and_gflops_ask_for_the_same_cells():
    first, second = (absolute_budget(f"{name}=7%", FULL) for name in ("flops", "gflops"))
    assert first == second


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("10%", "write flops=10%"),
        ("gflop=3", "Did you mean 'gflops'"),
        ("memory=200", "activations=200MB"),
        ("gflops=much", "got 'much'"),
        ("gflops=-3", "positive"),
        ("gflops=0%", "positive"),
        ("gflops=nan", "got 'nan'"),
        ("gflops=inf", "got 'inf'"),
        ("flops=250%", "must be at most 100%"),
    ],
)
def test_budgets_that_make_no_sense(text, reason):
    with pytest.raises(UsageError, match=reason):
        parse_budget_text(text)


@pytest.mark.parametrize("text", ["gflops=8", "gflops=100%", "flops=20GFLOPs"])
def test_a_budget_that_the_full_network_keeps_is_refused(text):
    with pytest.raises(UsageError, match=r"costs 8\.00 GFLOPs and keeps it without pruning"):
        absolute_budget(text, FULL)


def test_runs_are_checked_and_put_in_figures(tiny, crops, tmp_path):
    cells = TrainingCells(Store(tmp_path), crops)
    tenth = ["params=10%"]
    plan = make_recipe_runs(cells, tiny(seed=4), ["full", "ranp-f", "full"], tenth, 2)
    assert plan.methods == ("full", "ranp-f") and plan.seeds == (4, 5)
    parameters = sum(p.numel() for p in build_network(tiny().network).parameters())
    assert plan.budgets["params=10%"].limit == pytest.approx(parameters / 10)
    with pytest.raises(UsageError, match=r"unknown method 'ramp-f'.*'ranp-f'"):
        make_recipe_runs(cells, tiny(), ["ramp-f"], tenth, 1)
    with pytest.raises(UsageError, match="at least one method that prunes"):
        make_recipe_runs(cells, tiny(), ["full"], tenth, 1)


def test_cells_come_seed_by_seed_and_each_once():
    plan = design(["full", "ranp-f", "flat", "layerwise"], 2)
    named = [
        (
            cell["config"]["seed"],
            (cell["config"].get("pruning") or {}).get("method", "full"),
            cell["budget"] and cell["budget"]["amount"],
        )
        for cell in plan.cells()
    ]
    one = [
        ("full", None),
        ("ranp-f", 0.2),
        ("layerwise", 0.2),
        ("ranp-f", 0.06),
        ("layerwise", 0.06),
    ]
    assert named == [(seed, *rest) for seed in (0, 1) for rest in one]
    assert plan.cell("flat", "gflops=3%", 0) == plan.cell("layerwise", "gflops=3%", 0)
    assert plan.reference == "ranp-f"
    assert design(["full", "random", "synflow"], 1).reference == "random"


def test_the_first_sentence_says_how_ranp_does_against_thin(tmp_path):
    result = compared(
        tmp_path, {"thin": [0.80, 0.81, 0.79, 0.80], "ranp-f": [0.82, 0.84, 0.81, 0.83]}
    )
    # Differences of 2, 3, 2 and 3 points: t of the 97.5 % with three degrees of freedom is 3.182
    half = 3.182446 * (1 / 3) ** 0.5 / 2
    (at,) = result["budgets"]
    assert at["against_thin"].startswith(
        f"ranp-f is 2.50 points above thinning by hand (95 % interval {2.5 - half:+.2f} to "
        f"{2.5 + half:+.2f}, 4 seeds, p = 0.003"
    )
    assert at["against_thin"].endswith("shown to be more accurate.")
    assert sentences(at)[0] == at["against_thin"]


def test_without_thin_the_first_sentence_asks_for_it(tmp_path):
    (at,) = compared(tmp_path, {"random": [0.8], "ranp-f": [0.9]})["budgets"]
    assert "add it to the methods" in at["against_thin"]


def test_thin_is_layerwise_and_trained_once():
    plan = design(["thin", "layerwise"], 1)
    assert plan.cell("thin", "gflops=3%", 0) == plan.cell("layerwise", "gflops=3%", 0)
    assert len(plan.cells()) == 2  # one for each budget


def test_a_clear_win_and_a_clear_loss(tmp_path):
    result = compared(
        tmp_path,
        {
            "full": [0.91, 0.90, 0.89],
            "ranp-f": [0.80, 0.81, 0.79],
            "random": [0.59, 0.61, 0.60],
            "weighted": [0.79, 0.83, 0.78],
        },
    )
    (at,) = result["budgets"]
    assert at["conclusion"].startswith(
        "3 seeds support that ranp-f is more accurate than random and less accurate than full, "
        "and not that it is better or worse than weighted"
    )
    rows = {row["method"]: row for row in at["rows"]}
    assert rows["ranp-f"]["difference"] is None
    accuracy = rows["ranp-f"]["accuracy"]
    assert accuracy["mean"] == pytest.approx(0.80)
    assert accuracy["std"] == pytest.approx(0.01)
    # t of the 97.5 % with two degrees of freedom is 4.302653
    assert accuracy["high"] - accuracy["mean"] == pytest.approx(4.302653 * 0.01 / 3**0.5, rel=1e-6)
    assert rows["random"]["difference"]["mean"] == pytest.approx(-0.2)
    assert rows["random"]["difference"]["p_flip"] == 0.25 == at["least_flip_p"]
    assert rows["random"]["metrics"]["dice anterior"]["mean"] == pytest.approx(0.5)
    assert rows["random"]["means"]["deviation"] == pytest.approx(0.02)
    assert at["cautions"] == []
    assert (result["cells"], result["complete"]) == (12, 12)


def test_one_seed_supports_nothing(tmp_path):
    result = compared(tmp_path, {"ranp-f": [0.9], "random": [0.1]})
    assert "cannot support any statement" in result["budgets"][0]["conclusion"]


def test_what_could_not_be_reached_is_listed_and_not_tested(tmp_path):
    result = compared(
        tmp_path,
        {
            "ranp-f": [0.8, 0.81, 0.79],
            "magnitude": ["unreachable"] * 3,
            "random": [0.6, "diverged", "unreachable"],
        },
    )
    (at,) = result["budgets"]
    rows = {row["method"]: row for row in at["rows"]}
    assert rows["magnitude"]["accuracy"] is None and rows["magnitude"]["difference"] is None
    assert rows["magnitude"]["means"]["gflops"] == pytest.approx(0.3)
    assert rows["random"]["accuracy"]["n"] == 1
    assert at["cautions"] == [
        "magnitude cannot reach this budget with 3 of 3 seeds; the closest costs 50.0 % more.",
        "random cannot reach this budget with 1 of 3 seeds; the closest costs 50.0 % more.",
        "random diverged with 1 of 3 seeds.",
    ]


def test_the_same_network_under_two_names_is_tested_once(tmp_path):
    values = {"ranp-f": [0.8, 0.83, 0.79], "layerwise": [0.7, 0.71, 0.75]}
    alone = compared(tmp_path / "alone", values)["budgets"][0]
    both = compared(tmp_path / "both", {**values, "flat": values["layerwise"]})["budgets"][0]
    by_name = {row["method"]: row for row in both["rows"]}
    assert by_name["flat"]["difference"] == by_name["layerwise"]["difference"]
    assert by_name["flat"]["same_as"] == "layerwise"
    assert both["conclusion"] == alone["conclusion"]


def test_only_seeds_that_both_have_are_paired(tmp_path):
    result = compared(tmp_path, {"ranp-f": [0.8, 0.7, 0.6], "random": [None, 0.5, 0.5]})
    (difference,) = [r["difference"] for r in result["budgets"][0]["rows"] if r["difference"]]
    assert (difference["n"], difference["mean"]) == (2, pytest.approx(-0.15))
    assert (result["cells"], result["complete"]) == (6, 5)


def test_a_miss_of_the_budget_is_pointed_out(tmp_path):
    plan = design(["ranp-f", "random"], 2, ["gflops=10%"])
    store = filled(tmp_path, plan, {"ranp-f": [0.8, 0.8]})
    far = outcome(plan.cell("random", "gflops=10%", 0), 0.7)
    far |= {"gflops": 0.91 * 0.2, "deviation": -0.09}  # of a budget of 0.2
    store.complete([plan.cell("random", "gflops=10%", 0)], lambda cell, place: far)
    (caution,) = evaluate(plan, store)["budgets"][0]["cautions"]
    assert caution.startswith("random misses the budget by up to -9.0 %")


def test_runs_of_other_code_are_pointed_out(tmp_path):
    plan = design(["ranp-f", "random"], 2, ["gflops=10%"])
    filled(tmp_path, plan, {"ranp-f": [0.8, 0.8], "random": [0.7, 0.7]})
    store = Store(tmp_path, code="now", recompute=True)
    store.complete([plan.cell("ranp-f", "gflops=10%", 0)], lambda cell, place: outcome(cell, 0.8))
    at = evaluate(plan, store)["budgets"][0]
    assert at["cautions"] == [
        "Computed by another version of the code: ranp-f (1 of 2 seeds), random (2 of 2 seeds); "
        "--recompute computes them again."
    ]
    marked = {row["method"]: [run["outdated"] for run in row["runs"]] for row in at["rows"]}
    assert marked == {"ranp-f": [False, True], "random": [True, True]}


def test_the_time_that_is_left_is_that_of_the_same_method_before(tmp_path):
    plan = design(["full", "ranp-f"], 2, ["gflops=10%"])
    store = Store(tmp_path)
    assert seconds_left(plan, store) is None
    cells = plan.cells()
    store.complete(cells[:1], lambda cell, place: outcome(cell, 0.9))  # full, seed 0: 30 s
    assert seconds_left(plan, store) == 30 + 30 + 30  # of ranp-f nothing is known yet
    store.complete(cells[:2], lambda cell, place: outcome(cell, 0.8))  # ranp-f, seed 0: 10 s
    assert seconds_left(plan, store) == 30 + 10


def test_nothing_is_computed_twice(tmp_path):
    plan = design(["full", "ranp-f"], 2, ["gflops=10%"])
    computed = []

    def compute(cell, place):
        if len(computed) == 2 and not (place / "tried").exists():
            (place / "tried").touch()
            raise KeyboardInterrupt
        computed.append(cell)
        return outcome(cell, 0.8)

    told = []
    runs = (Store(tmp_path), plan.cells(), compute)
    with pytest.raises(KeyboardInterrupt):
        complete_cells(*runs, lambda cell, done, total: told.append((done, total)))
    assert complete_cells(*runs, lambda cell, done, total: told.append((done, total))) == 2
    assert complete_cells(*runs) == 0
    assert computed == plan.cells()
    assert told == [(0, 4), (1, 4), (2, 4), (2, 4), (3, 4)]
