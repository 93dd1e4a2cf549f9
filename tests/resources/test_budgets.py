"""Budgets in the words that people use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranp.errors import UsageError
from ranp.resources.budgets import Budget, describe, parse_budget, parse_budgets


@pytest.mark.parametrize(
    ("resource", "text", "amount"),
    [
        ("memory", "8GiB", 8 * 1024**3),
        ("memory", "500MB", 500_000_000),
        ("memory", "1.5 GB", 1.5e9),
        ("memory", "24gib", 24 * 1024**3),
        ("memory", "2G", 2e9),
        ("memory", "2Gi", 2 * 1024**3),
        ("memory", "123456", 123456),
        ("memory", 4096, 4096),
        ("flops", "20GFLOPs", 20e9),
        ("flops", "1.2 TFLOPS", 1.2e12),
        ("flops", "300M", 300e6),
        ("flops", "2e9", 2e9),
        ("params", "3M", 3e6),
        ("params", "250k", 250e3),
        ("latency", "250ms", 0.25),
        ("latency", "1.5s", 1.5),
        ("latency", "900us", 900e-6),
        ("latency", 0.5, 0.5),
    ],
)
def test_amounts(resource, text, amount):
    assert parse_budget(resource, text) == Budget(resource, pytest.approx(amount, rel=1e-12))


@pytest.mark.parametrize(
    ("resource", "text", "says"),
    [
        ("memory", "8 apples", "memory must be an amount such as 8GiB or 50%, got '8 apples'"),
        ("memory", "8GFLOPs", "memory must be an amount such as 8GiB"),
        ("memory", "lots", "memory must be an amount such as 8GiB"),
        ("memory", "", "memory must be an amount such as 8GiB"),
        ("flops", "20GiB", "flops must be an amount such as 20GFLOPs or 50%, got '20GiB'"),
        ("params", "3ms", "params must be an amount such as 3M"),
        ("latency", "3M", "latency must be an amount such as 250ms"),
        ("memory", "-8GiB", "must be positive, got '-8GiB'"),
        ("memory", "0", "must be positive"),
        ("flops", "150%", "must be at most 100% of the full network's, got '150%'"),
        ("latency", -1.0, "must be positive"),
        ("memory", float("nan"), "must be positive"),
        ("memory", float("inf"), "must be positive"),
        ("flops", 0.1, "such as 20GFLOPs or 50%, got 0.1; if a share is meant, give '10%'"),
        ("memory", "0.5", "if a share is meant, give '50%'"),
        ("memory", True, "must be a number or a string, got True"),
        ("memory", [8], r"must be a number or a string, got \[8\]"),
    ],
)
def test_what_is_no_amount_is_refused(resource, text, says):
    with pytest.raises(UsageError, match=says):
        parse_budget(resource, text)


@pytest.mark.parametrize("resource", ["memory", "flops", "params", "latency"])
def test_a_share_of_the_full_network(resource):
    budget = parse_budget(resource, "12.5 %")
    assert budget == Budget(resource, 0.125, of_full=True)
    assert budget.absolute(80.0) == Budget(resource, 10.0)
    assert str(budget) == f"12.5 % of the full network's {resource}"
    given = parse_budget(resource, 7)
    assert given.absolute(80.0) is given


def test_a_budget_is_needed():
    with pytest.raises(
        UsageError, match="give at least one budget: memory, flops, params, latency"
    ):
        parse_budgets({"memory": None, "flops": None})


def test_budgets_keep_their_order():
    made = parse_budgets({"memory": "1KiB", "flops": None, "params": 7})
    assert made == (Budget("memory", 1024.0), Budget("params", 7.0))


@given(
    number=st.floats(min_value=0.01, max_value=1e4),
    prefix=st.sampled_from(["", "k", "M", "G", "T"]),
    space=st.sampled_from(["", " "]),
)
def test_binary_prefixes_are_larger_than_decimal_ones(number, prefix, space):
    decimal = parse_budget("memory", f"{number!r}{space}{prefix}B").limit
    factor = 1000.0 ** ["", "k", "M", "G", "T"].index(prefix)
    assert decimal == pytest.approx(number * factor)
    if prefix:
        binary = parse_budget("memory", f"{number!r}{space}{prefix}iB").limit
        assert binary / decimal == pytest.approx(
            (1.024) ** ["k", "M", "G", "T"].index(prefix) * 1.024
        )


@given(st.floats(min_value=1e8, max_value=1e13))
def test_what_is_described_can_be_parsed_again(amount):
    for resource in ("memory", "flops"):
        again = parse_budget(resource, describe(resource, amount)).limit
        assert again == pytest.approx(amount, rel=0.01)


def test_small_amounts_are_not_rounded_to_nothing():
    assert describe("memory", 8) == "8 B"  # who gives memory=8 means GiB, and sees why not
    assert describe("flops", 10) == "10 FLOPs"
    assert describe("gflops", 0.002912) == "0.002912 GFLOPs"


@given(st.text(max_size=12))
def test_any_text_is_an_amount_or_refused(text):
    try:
        assert parse_budget("memory", text).limit > 0
    except UsageError as error:
        assert "memory" in str(error)
