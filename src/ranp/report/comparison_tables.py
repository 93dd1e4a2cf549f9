"""The result of a comparison as tables for the terminal, Markdown, CSV and its page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ranp.display import MIB
from ranp.report.comparison import Compared, Comparison
from ranp.report.table import csv_text, markdown_table
from ranp.report.terminal import numbers, table

Result = Mapping[str, Any]
"""What `ranp.experiments.evaluation.evaluate` returns, or the same read from JSON."""

_METRICS = {"dice": "Dice", "miou": "mIoU", "top1": "top-1", "top5": "top-5"}


def metric_name(key: str) -> str:
    """Return the usual name of a metric."""
    first, _, rest = key.partition(" ")
    return f"{_METRICS.get(first, first)} {rest}".strip()


def goal_heading(result: Result) -> str:
    """Return the heading of the metric that methods are compared by, in per cent."""
    return f"{metric_name(result['goal'] or 'accuracy')}, %"


def time_key(result: Result) -> tuple[str, str]:
    """Return the time to show and its heading: CPU time does not wait for other processes."""
    if result["device"] == "cpu":
        return "cpu_seconds", "CPU s"
    return "seconds", "seconds"


def terminal(result: Result) -> RenderableType:
    """Return a table for every budget, with its sentences below."""
    parts: list[RenderableType] = []
    key, time = time_key(result)
    for section in result["budgets"]:
        figures = (goal_heading(result), "95 % interval", "GFLOPs", "budget", time)
        against = (f"- {result['reference']}", "p")
        rows = table("method", *numbers(*figures, *against), title=heading(section))
        for row in section["rows"]:
            means, difference = row["means"], row["difference"]
            rows.add_row(
                Text(row["method"]),
                _accuracy(row),
                _interval(row["accuracy"]),
                _figure(means.get("gflops"), 4),
                _signed_percent(means.get("deviation")),
                _figure(means.get(key), 3),
                _points(difference),
                _p(difference, "p_holm"),
            )
        parts += [rows, "", *(Text(line) for line in sentences(section)), ""]
    return Group(*parts)


def heading(section: Mapping[str, Any]) -> str:
    """Return the heading of a budget's section."""
    unit = "MB of activations" if section["resource"] == "memory" else section["unit"]
    whole = section["resource"] == "params" and section["amount"] >= 1
    amount = f"{section['amount']:{',.0f' if whole else ',.4g'}} {unit}"
    asked = section["budget"].partition("=")[2]
    share = f"{asked.rstrip('%')} % of the full network"
    return f"{amount}, {share}" if asked.endswith("%") else amount


def sentences(section: Mapping[str, Any]) -> list[str]:
    """Return what the data of a budget's section support, and the cautions."""
    compared = {row["method"] for row in section["rows"]}
    same = [
        f"{row['method']} is the same network as {row['same_as']} at a given cost."
        for row in section["rows"]
        if row["same_as"] in compared
    ]
    # Comparisons of the version before are not against anything.
    against = [section.get(key, "") for key in ("against_full", "against_thin")]
    first = " ".join(filter(None, against))
    raced = [line for row in section["rows"] for line in _about_races(row)]
    return [*([first] if first else []), section["conclusion"], *section["cautions"], *same, *raced]


def _about_races(row: Mapping[str, Any]) -> list[str]:
    """Return what the races of a row chose, what they cost, and which of them say little."""
    races = {run["seed"]: run["race"] for run in row["runs"] if "race" in run}
    if not races:
        return []
    winners = dict.fromkeys(race["winner"] for race in races.values())
    chosen = [
        f"{winner} with {_seeds(seed for seed, race in races.items() if race['winner'] == winner)}"
        for winner in winners
    ]
    most = 100 * max(race["spent"] for race in races.values())
    lines = [
        f"{row['method']} chose {' and '.join(chosen)}, for at most {most:.4g} % of a training, "
        "which the costs do not include."
    ]
    doubtful = [seed for seed, race in races.items() if race.get("caution")]
    if doubtful:
        lines.append(
            f"With {_seeds(doubtful)} no candidate of the {row['method']} was seen to learn; "
            "let it cost more."
        )
    return lines


def _seeds(seeds: Iterable[int]) -> str:
    """Return seeds by number, such as "seeds 0, 1"."""
    numbers = list(map(str, seeds))
    return f"{'seed' if len(numbers) == 1 else 'seeds'} {', '.join(numbers)}"


def markdown(result: Result) -> str:
    """Return the tables and sentences as Markdown."""
    lines: list[str] = []
    reference = result["reference"]
    for section in result["budgets"]:
        metrics = [name for row in section["rows"] for name in row["metrics"]]
        others = [name for name in dict.fromkeys(metrics) if name != result["goal"]]
        lines += [f"### {heading(section)}", ""]
        lines += markdown_table(
            [
                *("method", goal_heading(result), "95 % interval"),
                *(f"{metric_name(name)}, %" for name in others),
                *("GFLOPs", "off the budget", "parameters", "memory, MB", "step, MB"),
                time_key(result)[1],
            ],
            [_markdown_row(result, row, others) for row in section["rows"]],
        )
        compared = [row for row in section["rows"] if row["difference"] is not None]
        if compared:
            lines += ["", f"Against {reference}, seed by seed:", ""]
            lines += markdown_table(
                ["method", "difference, points", "95 % interval", "p", "p, Holm", "p, sign-flip"],
                [
                    [
                        row["method"],
                        _points(row["difference"]),
                        _interval(row["difference"], signed=True),
                        *(_p(row["difference"], key) for key in ("p", "p_holm", "p_flip")),
                    ]
                    for row in compared
                ],
            )
        lines += ["", " ".join(sentences(section)), ""]
    return "\n".join(lines)


def _markdown_row(result: Result, row: Mapping[str, Any], others: Sequence[str]) -> list[str]:
    means = row["means"]
    return [
        row["method"],
        _accuracy(row),
        _interval(row["accuracy"]),
        *(_mean_and_std(row["metrics"].get(name)) for name in others),
        _figure(means.get("gflops"), 4),
        _deviation(row),
        "" if "parameters" not in means else f"{means['parameters']:,.0f}",
        _figure(means.get("memory_mb"), 3),
        _figure(means.get("step_mb"), 3),
        _figure(means.get(time_key(result)[0]), 3),
    ]


def summary_csv(result: Result) -> str:
    """Return CSV with a line for every method and budget; accuracies are shares of 1."""
    return csv_text(
        {
            "budget": section["budget"],
            "method": row["method"],
            "seeds": (row["accuracy"] or {}).get("n", 0),
            **_prefixed("accuracy", row["accuracy"], ("mean", "std", "low", "high")),
            **row["means"],
            "worst_deviation": row["worst_deviation"],
            **_prefixed(
                "difference", row["difference"], ("mean", "low", "high", "p", "p_holm", "p_flip")
            ),
            "reason": " ".join(row["reasons"]),
        }
        for section in result["budgets"]
        for row in section["rows"]
    )


def runs_csv(result: Result) -> str:
    """Return CSV with a line for every run."""
    return csv_text(
        {
            "budget": section["budget"],
            "method": row["method"],
            **{key: value for key, value in run.items() if not isinstance(value, (dict, list))},
            **{name: values["last"] for name, values in run.get("metrics", {}).items()},
        }
        for section in result["budgets"]
        for row in section["rows"]
        for run in row["runs"]
    )


def page(result: Result, *, title: str, command: str | None = None) -> Comparison:
    """Return the comparison as the content of its page."""
    several = len(result["budgets"]) > 1
    one_resource = len({section["resource"] for section in result["budgets"]}) == 1
    networks: dict[str, Compared] = {}
    for section in result["budgets"]:
        for row in section["rows"]:
            if row["accuracy"] is None:
                continue
            asked = section["budget"].partition("=")[2] if one_resource else section["budget"]
            alone = row["method"] == "full" or not several
            name = row["method"] if alone else f"{row['method']}, {asked}"
            networks.setdefault(name, _compared(result, section, row, name))
    n = len(result["seeds"])
    return Comparison(
        title=title,
        metric=goal_heading(result),
        interval=f"95 % t-interval of the mean over {n} {'seed' if n == 1 else 'seeds'}",
        networks=list(networks.values()),
        command=command,
        bounds=(0.0, 100.0),
        full="full" if "full" in networks else None,
        answers=[(heading(section), sentences(section)) for section in result["budgets"]],
    )


def _compared(
    result: Result, section: Mapping[str, Any], row: Mapping[str, Any], name: str
) -> Compared:
    accuracy, means, difference = row["accuracy"], row["means"], row["difference"]
    full, low, (time, _) = row["method"] == "full", accuracy["low"], time_key(result)
    more: dict[str, str | tuple[str, float]] = {}
    if not full:
        more["off budget"] = (_signed_percent(means["deviation"]), means["deviation"])
    if difference is not None and not full:
        more[f"minus {result['reference']}"] = (_points(difference), difference["mean"])
        if difference["p_holm"] is not None:
            more["p, Holm"] = (_p(difference, "p_holm"), difference["p_holm"])
    return Compared(
        name=name,
        accuracy=100 * accuracy["mean"],
        interval=None if low is None else (100 * low, 100 * accuracy["high"]),
        costs={
            "gflops": means["gflops"],
            "param_mb": means["parameters"] * 4 / MIB,
            "memory_mb": means["memory_mb"],
            time: means[time],
        },
        runs=accuracy["n"],
        more=more,
        series=row["method"],
        group="" if full else section["budget"],
    )


def _accuracy(row: Mapping[str, Any]) -> str:
    if row["accuracy"] is not None:
        return _mean_and_std(row["accuracy"])
    outcomes = set(row["outcomes"].values())
    if outcomes == {"unreachable"}:
        return "out of reach"
    return "diverged" if "diverged" in outcomes else ""


def _mean_and_std(summary: Mapping[str, Any] | None) -> str:
    if summary is None:
        return ""
    mean = f"{100 * summary['mean']:.1f}"
    return mean if summary["std"] is None else f"{mean} ± {100 * summary['std']:.1f}"


def _interval(summary: Mapping[str, Any] | None, *, signed: bool = False) -> str:
    if summary is None or summary["low"] is None:
        return ""
    form = "+.1f" if signed else ".1f"
    return f"{100 * summary['low']:{form}} to {100 * summary['high']:{form}}"


def _deviation(row: Mapping[str, Any]) -> str:
    """Return the mean deviation from the budget and, where seeds differ, the largest."""
    mean, worst = row["means"].get("deviation"), row["worst_deviation"]
    if mean is None:
        return ""
    text = _signed_percent(mean)
    return text if abs(worst - mean) < 5e-4 else f"{text}, at most {_signed_percent(worst)}"


def _signed_percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:+.1f} %"


def _points(difference: Mapping[str, Any] | None) -> str:
    return "" if difference is None else f"{100 * difference['mean']:+.1f}"


def _p(difference: Mapping[str, Any] | None, key: str) -> str:
    if difference is None or difference[key] is None:
        return ""
    return "< 0.001" if difference[key] < 0.001 else f"{difference[key]:.3f}"


def _figure(value: float | None, digits: int) -> str:
    """Return a number with some significant digits and without exponent."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 10**digits else f"{value:#.{digits}g}".rstrip(".")


def _prefixed(prefix: str, values: Mapping[str, Any] | None, keys: Sequence[str]) -> dict[str, Any]:
    return {f"{prefix}_{key}": None if values is None else values[key] for key in keys}
