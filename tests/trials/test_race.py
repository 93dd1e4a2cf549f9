"""Comparisons and races with one's own training loop."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial, wraps
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ranp
from ranp.errors import InfeasibleError, UsageError
from ranp.fitting import TrainingStep
from ranp.resources.budgets import parse_budgets
from ranp.trials import candidates
from ranp.trials.allocating import Allocation, make_allocator
from ranp.trials.loops import training_name
from ranp.trials.race import caution, race
from ranp.trials.store import Store
from tests.toy import SHAPE, batch, build, check_ins, score_with


def train(model: nn.Module, seed: int) -> Iterator[dict[str, float]]:
    return check_ins(model, 20)


def make_race(path: Path, **options: Any) -> Any:
    lines: list[str] = []
    options = {"budget": {"flops": "20%"}, "length": 20, "cost": 1.5, **options}
    found = race(build, train, out=path, tell=lines.append, **options)
    return found, lines


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[str]]:
    """A race with data to score with, and what was told of it."""
    return make_race(tmp_path_factory.mktemp("scored"), score_with=score_with())


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The directory of a race without data, and what it found."""
    path = tmp_path_factory.mktemp("ruled")
    return path, make_race(path, example_input=SHAPE)[0]


def test_a_race_keeps_its_stated_cost_and_hands_back_a_plan_at_the_budget(
    scored: tuple[Any, list[str]], tmp_path: Path
) -> None:
    found, lines = scored
    assert lines[0] == "Bringing 7 candidates to the budget"
    assert lines[1].startswith("Race of 7 candidates: at most ")
    assert found.spent <= found.stated <= 1.5
    trained = [*found.curves.values(), *found.again.values()]
    assert found.spent == sum(map(len, trained)) / 20
    assert next(iter(found.widths)) == "ranp-f"
    assert found.confirmed == (found.winner != "ranp-f")
    assert found.why in str(found).replace("\n", " ")
    slim, full = found.plan.costs["slim"]["gflops"], found.plan.costs["full"]["gflops"]
    assert 0.9 * 0.2 * full <= slim <= 0.2 * full  # a neuron of so small a network is 2 % of it
    assert found.winner in ("ranp-f", found.challenger) or found.refined[found.winner] is None
    plan = type(found.plan).load(found.save(tmp_path / "won") / "plan.json")
    assert plan.apply(build())(torch.zeros(SHAPE)).shape == (1, 2)


def test_a_race_says_how_it_goes(tmp_path: Path) -> None:
    rules = ["thin", "power:0.25", "power:-0.25"]
    found, lines = make_race(tmp_path, candidates=rules, example_input=SHAPE)
    counts = [int(line.split()[0]) for line in lines if " check-ins; " in line]
    assert counts == sorted(set(counts))
    assert counts[-1] == round(20 * found.spent)
    rungs = [line for line in lines if line.startswith("Rung")]
    assert rungs == [
        f"Rung at check-in {rung.check_ins}: {' > '.join(rung.standing)}" for rung in found.rungs
    ]
    name, curve = next(iter(found.curves.items()))
    at = found.rungs[0].check_ins
    trained = next(line for line in lines if f"{name}, seed 0, at check-in {at}:" in line)
    assert f"accuracy {curve[at - 1]['accuracy']:.3g}" in trained


def train_together(directory: Path, model: nn.Module, seed: int) -> Iterator[dict[str, float]]:
    """Begins when another process trains as well; gives up after a minute."""
    (directory / str(os.getpid())).touch()
    deadline = time.monotonic() + 60
    while len(list(directory.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    yield from check_ins(model, 20)


@pytest.mark.usefixtures("forks")
def test_processes_share_a_race(
    ruled: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, alone = ruled
    # What other tests imported may be gone by now.
    monkeypatch.setattr("ranp.user_code._LOADED", {})
    (pids := tmp_path / "pids").mkdir()
    together = race(
        build, partial(train_together, pids), budget={"flops": "20%"}, length=20, cost=1.5, jobs=2,
        out=tmp_path, tell=str, example_input=SHAPE,
    )  # fmt: skip
    assert len(list(pids.iterdir())) == 2
    assert together.to_dict() | {"cpu_seconds": 0} == alone.to_dict() | {"cpu_seconds": 0}


def dice(*values: float) -> list[dict[str, float]]:
    return [{"loss": 1.0, "dice": value} for value in values]


@pytest.mark.parametrize(
    ("curves", "says"),
    [
        # 0.25 is the mean of the second half, (0.3 + 0.2) / 2, which is above all first check-ins.
        ([dice(0.2, 0.1, 0.3, 0.2), dice(0.24)], None),
        (
            [dice(0.2, 0.1, 0.3, 0.2), dice(0.26)],
            "dice has not risen: it is at most 0.25 at the last rung, and was up to 0.26 at the",
        ),
        ([dice(0.0, 0.0), dice(0.0, 0.0)], "at most 0 at the last rung, and was up to 0 at the"),
        # The one that rose has diverged before the last rung.
        ([dice(0.1, 0.3, 0.3), dice(0.2, 0.1, 0.1, 0.1)], "at most 0.1 at the last rung"),
        ([dice(0.5), dice(0.1)], "All candidates were judged at their first check-in"),
        ([[]], None),
        ([], None),
    ],
)
def test_a_race_in_which_nobody_learned_says_so(curves: Any, says: str | None) -> None:
    found = caution(curves)
    assert (found is None) == (says is None)
    if says is not None:
        assert says in str(found) and "higher cost" in str(found)


def test_values_that_only_some_check_ins_have_are_left_out(tmp_path: Path) -> None:
    def sometimes(model: nn.Module, seed: int) -> Iterator[dict[str, float]]:
        for number, line in enumerate(check_ins(model, 4), 1):
            value = {"accuracy": line["accuracy"] + sum(p.numel() for p in model.parameters())}
            yield value | ({"distance": 2.5} if number == 1 and seed == 0 else {})

    found = race(
        build, sometimes, budget={"flops": "20%"}, length=4, cost=4, out=tmp_path, tell=str,
        candidates=["thin", "power:0.5"], example_input=SHAPE,
    )  # fmt: skip
    assert set(found.again) >= {"thin", "power:0.5"}
    assert "distance" in (found.save(tmp_path) / "race.html").read_text()


def test_a_race_is_decided_by_its_seed(scored: tuple[Any, list[str]], tmp_path: Path) -> None:
    first, _ = scored
    second, _ = make_race(tmp_path, score_with=score_with())
    assert first.to_dict() | {"cpu_seconds": 0} == second.to_dict() | {"cpu_seconds": 0}


def test_a_race_that_was_run_trains_nothing_again(ruled: tuple[Path, Any]) -> None:
    path, first = ruled

    def never(model: nn.Module, seed: int) -> Iterator[float]:
        raise AssertionError

    never.__qualname__, never.__module__ = train.__qualname__, train.__module__
    again = race(
        build, never, budget={"flops": "20%"}, length=20, cost=1.5, out=path, tell=str,
        example_input=SHAPE,
    )  # fmt: skip
    assert again.to_dict() == first.to_dict()


def test_without_data_only_rules_race(ruled: tuple[Path, Any]) -> None:
    _, found = ruled
    raced = set(found.rungs[0].standing)
    assert next(iter(found.widths)) == "thin"
    assert raced == {"thin", "power:-0.25", "power:0.25", "power:0.5", "power:-0.5"}


def test_what_others_must_beat_is_ranp_by_the_budgeted_resource(
    scored: tuple[Any, list[str]], tmp_path: Path
) -> None:
    by_params, _ = make_race(tmp_path, budget={"params": "30%"}, score_with=score_with(), cost=0.2)
    assert next(iter(scored[0].widths)) == "ranp-f"
    assert next(iter(by_params.widths)) == "ranp-p"


def test_candidates_out_of_reach_race_with_a_floor(tmp_path: Path) -> None:
    found, _ = make_race(
        tmp_path, candidates=["thin", "power:-0.25", "vanilla"], score_with=score_with(),
        budget={"flops": "1%"},
    )  # fmt: skip
    assert "vanilla" in found.rungs[0].standing
    assert min(found.widths["vanilla"].values()) >= 2  # never a single channel


def test_candidates_that_would_starve_a_layer_race_with_a_floor(tmp_path: Path) -> None:
    scored = score_with()
    alone = ranp.prune(build(), *scored, flops="3%", weights="fresh")
    assert min(len(layer.kept) for layer in alone.plan.layers.values()) == 1
    found, _ = make_race(
        tmp_path, candidates=["ranp-f", "thin"], score_with=scored, budget={"flops": "3%"}
    )
    assert min(found.widths["ranp-f"].values()) == 2


def test_a_race_has_one_budget(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must have one budget, got 2"):
        make_race(tmp_path, budget={"flops": "20%", "params": "20%"}, example_input=SHAPE)


@pytest.mark.parametrize("jobs", [0, -1, "slurm", None])
def test_jobs_of_a_race_are_processes(tmp_path: Path, jobs: Any) -> None:
    with pytest.raises(UsageError, match=f"number of processes.*, got {jobs!r}; on a cluster"):
        make_race(tmp_path, jobs=jobs, example_input=SHAPE)


def test_the_only_candidate_wins_without_a_race(tmp_path: Path) -> None:
    found, _ = make_race(tmp_path, candidates=["thin", "layerwise"], example_input=SHAPE)
    assert found.winner == "thin"
    assert found.left_out == {"layerwise": "it is the same network as thin"}
    assert found.spent == 0
    assert "thin wins: no other candidate could race." in str(found).replace("\n", " ")
    assert (found.save(tmp_path / "won") / "race.html").stat().st_size


def test_refinements_have_the_settings_of_the_race(tmp_path: Path) -> None:
    found, _ = make_race(
        tmp_path, example_input=SHAPE, candidates=["thin", "power:0.25"], cost=8, floor=5
    )
    assert found.refined
    kept = [widths for name, widths in found.widths.items() if name in found.refined]
    assert min(count for widths in kept for count in list(widths.values())[:-1]) >= 5


def test_a_refinement_is_another_network_than_all_before(tmp_path: Path) -> None:
    allocator = make_allocator(build, train, Store(tmp_path), example_input=SHAPE)
    (budget,) = parse_budgets({"flops": "5%"})
    winner = allocator.allocate(allocator.choice("thin", budget, 0), budget)
    assert isinstance(winner, Allocation)
    refined = candidates.refinements(allocator, "thin", winner, budget, 0)
    widths = [tuple(each.widths.values()) for each in (winner, *refined.values())]
    assert len(set(widths)) == len(widths) > 2


def test_a_loader_without_end_is_scored_as_far_as_it_takes(tmp_path: Path) -> None:
    endless = (batch(1) for _ in count())
    found, _ = make_race(
        tmp_path, candidates=["thin", "weighted"], score_with=(endless, F.cross_entropy)
    )
    assert set(found.widths) >= {"thin", "weighted"}


def test_prune_takes_the_winner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loader, loss = score_with()
    raced = {"method": "race", "train": train, "length": 400}  # 5 % of it are 20 check-ins
    result = ranp.prune(build(), loader, loss, flops="20%", **raced)
    found, _ = make_race(Path("out/race"), length=400, cost=0.05, score_with=score_with())
    assert result.plan.method == found.winner
    assert result.plan.layers == found.plan.layers  # the very network that raced
    assert 0.15 < result.after.gflops / result.before.gflops <= 0.2


def test_scores_of_given_weights_are_those_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loader, loss = score_with()
    given: dict[str, Any] = {"flops": "20%", "weights": "given", "progress": False}
    raced = {"method": "race", "train": train, "length": 400}
    monkeypatch.setattr(candidates, "DEFAULT_CANDIDATES", ("ranp-f",))
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = build()
        pruned = ranp.prune(model, loader, loss, **given)
        assert ranp.prune(model, loader, loss, **given, **raced).plan.layers == pruned.plan.layers


@pytest.mark.slow
def test_fit_takes_the_winner_at_a_budget_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fitted = ranp.fit(
        build(), *score_with(), memory="60%", device="cpu", method="race", train=train, length=400
    )
    assert fitted.binding == "memory"
    assert fitted.figures["slim"]["memory"] <= fitted.budgets[0].limit


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"method": "race", "flops": "20%"}, "give train and length"),
        ({"method": "race", "sparsity": 0.5, "train": train, "length": 20}, "one cost; give one"),
        ({"flops": "20%", "train": train, "length": 20}, "for method='race', got method='ranp-f'"),
        (
            {"method": "race", "flops": "20%", "train": train, "length": 79},
            "more check-ins .* got length=79; yield more often, or use ranp.race with cost=0.051",
        ),
    ],
)
def test_prune_races_only_with_all_it_takes(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        ranp.prune(build(), *score_with(), **arguments)


def test_a_race_in_which_every_training_diverges_has_no_winner(tmp_path: Path) -> None:
    def diverges(model: nn.Module, seed: int) -> Iterator[float]:
        yield 0.5
        yield float("nan")

    lines: list[str] = []
    with pytest.raises(UsageError, match=r"every training diverged \(metric is nan at check-in 2"):
        race(
            build, diverges, budget={"flops": "20%"}, length=20, cost=1.5, out=tmp_path,
            tell=lines.append, example_input=SHAPE,
        )  # fmt: skip
    assert any("at check-in 1: metric is nan at check-in 2" in line for line in lines)


def test_a_race_says_who_is_left_out(tmp_path: Path) -> None:
    _, lines = make_race(tmp_path, candidates=["thin", "layerwise"], example_input=SHAPE)
    assert "Left out, layerwise: it is the same network as thin" in lines


def test_a_candidate_races_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be different methods, got thin twice; name it once"):
        make_race(tmp_path, candidates=["thin", "power:0.5", "thin"], example_input=SHAPE)


class Residual(nn.Module):
    """Ties channels by additions, and normalizes each sample by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 24, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(24, 24, 3, padding=1), nn.InstanceNorm2d(24, affine=True))
            for _ in range(3)
        )
        self.head = nn.Linear(24, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x).relu()
        y: Tensor = self.head(x.mean((2, 3)))
        return y


def test_the_incumbent_is_what_prune_chooses(tmp_path: Path) -> None:
    loader, loss = score_with()
    pruned = ranp.prune(Residual(), loader, loss, flops="20%", progress=False)
    raced = race(
        Residual,
        train,
        budget={"flops": "20%"},
        length=20,
        candidates=["ranp-f"],
        score_with=(loader, loss),
        out=tmp_path,
        tell=(lines := []).append,
    )
    assert lines == [
        "Bringing 1 candidate to the budget",
        "A single candidate reaches the budget, so nothing is trained",
    ]
    assert raced.plan.layers == pruned.plan.layers
    assert raced.plan.settings["coupling"] == "mean"  # the paper's leaves all tied channels


def test_a_cost_that_allows_no_race_is_refused_before_anything_is_scored(tmp_path: Path) -> None:
    def never(output: Tensor, target: Tensor) -> Tensor:
        raise AssertionError("scored")

    with pytest.raises(UsageError, match=r"cost must be at least 20 % of the training"):
        make_race(tmp_path, cost=0.1, score_with=(score_with()[0], never))


def test_a_forward_scores_as_the_loss_that_it_computes(tmp_path: Path) -> None:
    pairs, loss = score_with()
    triples = [("a case", x, y) for x, y in pairs]
    by_loss, _ = make_race(tmp_path / "a", score_with=(pairs, loss), candidates=["ranp-f"])
    by_forward, _ = make_race(
        tmp_path / "b", score_with=triples, candidates=["ranp-f"],
        forward=lambda model, batch: loss(model(batch[1]), batch[2]),
    )  # fmt: skip
    assert by_forward.plan.layers == by_loss.plan.layers
    assert by_forward.plan.inputs == by_loss.plan.inputs


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"forward": F.cross_entropy}, "give score_with=loader"),
        ({"forward": F.cross_entropy, "score_with": score_with()}, "give score_with=loader alone"),
        ({"score_with": score_with()[0]}, r"must be \(loader, loss\), or a loader .*, got list"),
        ({"score_with": (score_with()[0], 3)}, r"loss must be a function .*, got int"),
    ],
)
def test_what_cannot_be_scored_with_is_refused(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        make_race(tmp_path, **given)


def test_a_race_to_a_memory_budget_counts_the_loss(tmp_path: Path) -> None:
    step = TrainingStep(batch=2, sample=SHAPE[1:], device="cpu")
    options: dict[str, Any] = {"candidates": ["thin"], "step": step}
    options |= {"example_input": SHAPE, "budget": {"memory": "1MiB"}}

    def heavy(output: Tensor, target: Tensor) -> Tensor:
        return output[:, :, None].expand(-1, -1, 2**18).exp().mean()  # 4 MiB for the backward pass

    assert make_race(tmp_path, **options)[0].winner == "thin"
    with pytest.raises(InfeasibleError, match="the closest takes"):
        make_race(tmp_path, score_with=(score_with()[0], heavy), **options)


@pytest.mark.parametrize(
    ("candidates", "raced", "left_out"),
    [
        (["power:0.25", "layerwise", "thin"], ["power:0.25", "thin"], "layerwise"),
        (["layerwise", "thin", "power:0.25"], ["layerwise", "power:0.25"], "thin"),
    ],
)
def test_of_the_same_network_the_first_candidate_or_the_known_one_races(
    tmp_path: Path, candidates: list[str], raced: list[str], left_out: str
) -> None:
    found, lines = make_race(tmp_path, example_input=SHAPE, candidates=candidates, cost=4)
    assert list(found.widths)[:2] == raced
    same = ({"thin", "layerwise"} - {left_out}).pop()
    assert found.left_out == {left_out: f"it is the same network as {same}"}
    assert f"Left out, {left_out}: it is the same network as {same}" in lines


def test_where_no_candidate_can_race_each_has_a_line_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(InfeasibleError) as caught:
        make_race(
            tmp_path, example_input=SHAPE, candidates=["thin", "power:0.5"], budget={"params": 20}
        )
    first, *reasons = str(caught.value).splitlines()
    assert first == "no candidate can race:"
    assert [line.partition(" cannot ")[0] for line in reasons] == ["  thin", "  power:0.5"]
    assert all(" cannot reach 20 params" in line for line in reasons)


def test_a_reason_that_holds_for_several_candidates_is_given_once(tmp_path: Path) -> None:
    names = ["power:0.5", "power:-0.5", "power:0.25"]
    with pytest.raises(InfeasibleError) as caught:
        make_race(tmp_path, example_input=SHAPE, candidates=names, budget={"params": 20})
    (reason,) = str(caught.value).splitlines()[1:]
    assert reason.startswith("  power:0.5, power:-0.5, power:0.25 cannot reach 20 params, ")


def test_layers_that_only_a_single_channel_is_left_for_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {
        "candidates": ["ranp-f", "power:0"], "score_with": score_with(), "floor": 1,
    }  # fmt: skip
    make_race(tmp_path, budget={"flops": "20%"}, **options)  # the floor "auto" reaches it
    assert "single channel" not in caplog.text
    found, _ = make_race(tmp_path, budget={"flops": "0.5%"}, **options)
    assert min(found.widths["ranp-f"].values()) == 1
    assert "ranp-f, power:0: some layers keep a single channel, since the budget is out of " in (
        caplog.text
    )


RATES: list[float] = []


def tuned(model: nn.Module, seed: int, rate: float = 1e-2) -> Iterator[float]:
    RATES.append(rate)
    yield rate


def test_trainings_with_other_arguments_are_other_trainings(tmp_path: Path) -> None:
    for rate in (0.1, 0.2, 0.1):
        race(
            build, partial(tuned, rate=rate), budget={"flops": "20%"}, length=1, cost=4,
            candidates=["thin", "power:0.5"], out=tmp_path, example_input=SHAPE, tell=str,
        )  # fmt: skip
    assert RATES == [0.1, 0.1, 0.2, 0.2]  # what was trained with 0.1 is not trained again


def test_a_training_is_called_alike_in_every_process() -> None:
    here = f"{tuned.__module__}:tuned"
    assert training_name(tuned) == here
    assert training_name(partial(tuned, rate=0.1)) == f"{here}(rate=0.1)"
    decorated = wraps(partial(tuned, rate=0.1))(lambda model, seed: tuned(model, seed))
    assert training_name(decorated) == f"{here}(rate=0.1)"
    assert training_name(partial(tuned, rate=object())) == f"{here}(rate=<object object>)"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"train": 3}, r"train must be a function train\(model, seed\), got int"),
        ({"length": 0}, "length must be how many check-ins .* such as 200, got 0"),
        ({"length": "20"}, "length must be how many check-ins .* such as 200, got '20'"),
        ({"build": build()}, "build must be a function .* got Sequential; give its class"),
        ({"budget": "flops=20%"}, "must be amounts by resource, such as .* got 'flops=20%'"),
        ({"candidates": "thin"}, "candidates must be a list of names, got 'thin'"),
        ({"candidates": []}, r"candidates must be a list of names, got \[\]"),
    ],
)
def test_arguments_of_another_kind_are_refused(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    arguments = {"build": build, "train": train, "budget": {"flops": "20%"}, "length": 20, **given}
    with pytest.raises(UsageError, match=message):
        race(**arguments, out=tmp_path, example_input=SHAPE)
    with pytest.raises(UsageError, match=message):
        ranp.compare(**arguments, methods=["race"], out=tmp_path, example_input=SHAPE)
