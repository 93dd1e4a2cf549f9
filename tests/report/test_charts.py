"""The geometry of charts."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranp.report.charts import Point, line_chart, network_picture, nice_ticks, scatter
from ranp.report.rendering import tails_of

values = st.floats(1e-6, 1e9)


@given(values, values)
def test_ticks_are_few_round_and_cover_the_range(a, b):
    low, high = min(a, b), max(a, b)
    ticks = nice_ticks(low, high)
    assert len(ticks) <= 8
    if high > low * (1 + 1e-9):
        assert ticks[0] <= low * (1 + 1e-6) + 1e-12 and ticks[-1] >= high * (1 - 1e-6)


@pytest.mark.parametrize(
    ("xs", "labels"),
    [((1, 2, 3), ["1", "2", "3"]), ((1, 2.5, 3), ["1", "1.5", "2", "2.5", "3"])],
)
def test_whole_numbers_have_no_tick_between_them(xs, labels):
    chart = line_chart({"a": [(x, x) for x in xs]})
    assert [tick.label for tick in chart.x_ticks] == labels


def layer(neurons, kept):
    return {"name": "conv", "neurons": neurons, "kept": kept, "fixed": 0}


@given(st.lists(st.integers(1, 2048), min_size=1, max_size=70))
def test_blocks_never_overlap_and_are_as_wide_as_their_channels(neurons):
    topology = {"space": [[8, 8]] * len(neurons), "feeds": [], "adds": []}
    picture = network_picture([layer(n, n) for n in neurons], topology)
    for left, right in pairwise(picture.blocks):
        assert left.x + left.width < right.x
    assert picture.blocks[-1].x + picture.blocks[-1].width <= picture.width
    wide = [b for b in picture.blocks if b.width > 4.5]
    for a, b in pairwise(wide):
        assert a.width / b.width == pytest.approx(a.neurons / b.neurons, rel=0.03)


def test_an_encoder_and_decoder_make_a_u_with_straight_skips():
    spaces = [[32] * 3, [16] * 3, [8] * 3, [16] * 3, [32] * 3]
    feeds = [[0, 1], [1, 2], [2, 3], [1, 3], [3, 4], [0, 4]]
    picture = network_picture(
        [layer(8, 4)] * 5, {"space": spaces, "feeds": feeds, "adds": [[1, 3]]}
    )
    heights = [block.y for block in picture.blocks]
    assert heights[0] == heights[4] < heights[1] == heights[3] < heights[2]
    assert [link.kind for link in picture.links] == ["next"] * 3 + ["skip", "next", "skip", "add"]
    assert all("H" in link.path for link in picture.links if link.kind == "skip")
    assert [block.kept_width / block.width for block in picture.blocks] == [0.5] * 5


def test_lines_reach_from_edge_to_edge():
    chart = line_chart({"a": [(0, 0), (5, 10)]}, width=100, height=50)
    assert chart.series[0].line == "M0.0 50.0L100.0 0.0"
    assert [tick.label for tick in chart.y_ticks] == ["0", "2", "4", "6", "8", "10"]


def test_costs_far_apart_stand_on_a_logarithmic_axis():
    a, b = Point("a", 1, 50, 49, 51, 0, 0), Point("b", 10, 60, 60, 60, 1, 0)
    far = scatter([a, b, Point("c", 100, 70, 70, 70, 2, 1)])
    xs = [point.x for point in far.points]
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)
    near = scatter([Point("a", 2, 50, 49, 51, 0, 0), Point("b", 4, 60, 60, 60, 1, 0)])
    assert near.points[1].x == pytest.approx(2 * near.points[0].x, abs=0.2)
    assert near.points[0].low > near.points[0].y > near.points[0].high  # down is up in SVG


def test_points_of_the_same_cost_stand_side_by_side():
    costs = (1.0, 1.0, 1.0, 1.05, 20.0)
    points = scatter([Point(str(i), x, 50, 50, 50, 0, 0) for i, x in enumerate(costs)]).points
    xs = [point.x for point in points]
    gaps = [b - a for a, b in pairwise(xs)]
    assert gaps[:3] == pytest.approx([6, 6, 6])  # so far apart that they can be told
    alone = scatter([Point("a", 1.0, 50, 50, 50, 0, 0), Point("b", 20.0, 50, 50, 50, 0, 0)]).points
    assert xs[4] == alone[1].x
    assert min(xs) >= 0 and max(xs) <= 300


def test_a_crowd_pushes_its_neighbours_aside():
    costs = [10.0] * 5 + [11.0] * 5
    xs = [
        p.x for p in scatter([Point(str(i), x, 5, 5, 5, 0, 0) for i, x in enumerate(costs)]).points
    ]
    assert all(b - a == pytest.approx(6, abs=0.11) for a, b in pairwise(xs))


def test_frontiers_join_what_is_reached_at_the_least_cost_and_end_at_the_full_network():
    full = Point("full", 100.0, 90, 90, 90, 0, 0)
    good = [Point("a", 3.0, 70, 70, 70, 1, 0), Point("b", 10.0, 80, 80, 80, 1, 0)]
    bad = [Point("c", 4.0, 60, 60, 60, 2, 0), Point("d", 30.0, 50, 50, 50, 2, 0)]
    view = scatter([full, *good, *bad], end=0)
    x = {point.name: f"{point.x} {point.y}" for point in view.points}
    assert list(view.frontiers.items()) == [
        (1, f"M{x['a']}L{x['b']}L{x['full']}"),
        (2, f"M{x['c']}L{x['full']}"),  # d costs more than c and reaches less
    ]
    assert scatter([full, *good, *bad]).frontiers == {}


@pytest.mark.parametrize(
    "names",
    [
        [f"upsamples.{i}.conv_block.conv{j}.conv" for i in range(3) for j in (1, 2)],
        [f"deep_supervision_heads.{i}.conv.conv" for i in range(3)],
        [
            *(f"upsamples.{i}.transp_conv.conv" for i in range(3)),
            "upsamples.0.conv_block.conv.conv",
        ],
        [f"model.1.submodule.{i}.submodule.1.conv" for i in range(12)],  # as in MONAI's UNet
        ["a", "a.b", "a.very.long.name.of.a.layer", "a.very.long.name.of.a.layer"],
    ],
)
def test_no_two_names_look_alike_when_their_middle_is_cut(names):
    cut = set()
    for name, tail in tails_of(names).items():
        cut.add((name[: 22 - tail], name[-tail:]) if tail and len(name) > 22 else name)
    assert len(cut) == len(set(names))


def test_names_are_cut_after_a_dot():
    names = [f"upsamples.{i}.conv_block.conv{j}.conv" for i in range(3) for j in (1, 2)]
    assert set(tails_of(names).values()) == {len("conv1.conv")}
    # Not where that would hide what tells two names apart.
    assert tails_of(["a" * 12 + f".b{i}.cc.ddd" for i in "xy"])["a" * 12 + ".bx.cc.ddd"] == 9


def test_names_that_differ_in_their_middle_alone_are_not_cut():
    names = [f"model.1.submodule.{i}.submodule.1.conv" for i in range(12)]
    assert set(tails_of([*names, "head"]).values()) == {0, 11}
