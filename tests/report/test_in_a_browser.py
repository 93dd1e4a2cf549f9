"""The pages in a real browser: no errors, no requests, and the slider as exact as the library."""

from __future__ import annotations

import json

import pytest

from ranp.files import write_text
from ranp.recording import write_record
from ranp.recording.explorer import explorable
from ranp.report.comparison import Compared, Comparison, render_comparison
from ranp.report.figures import draw_retained
from ranp.report.page import write_report
from ranp.report.race import render_race
from ranp.report.reproduction import Reproduction, render_reproduction
from ranp.report.table import Column, ComparisonTable, Figure, Row
from ranp.report.terminal import percent
from ranp.resources import count
from tests.report.conftest import SCREENSHOTS
from tests.report.networks import make_chooser, record_of
from tests.report.test_race_page import RECORD as RACE

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;{{7*7}}\u2028"

MOVE = """((method, percent) => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const radio = all('input[name="method"]').find((choice) => choice.value === method);
  radio.checked = true;
  radio.dispatchEvent(new Event("change"));
  const box = document.getElementById("sparsity-exact");
  box.value = percent;
  box.dispatchEvent(new Event("input"));
  box.dispatchEvent(new Event("change"));
  const live = {}, text = {};
  for (const node of document.querySelectorAll("[data-live]")) {
    live[node.dataset.live] = node.dataset.value === "" ? null : Number(node.dataset.value);
    text[node.dataset.live] = node.textContent;
  }
  const texts = (selector) => all(selector).map((node) => node.textContent);
  const charts = {};
  for (const { id, dataset } of all("table[data-chart]"))
    charts[dataset.chart] = texts(`#${id} .after`);
  return {
    live, text, charts, kept: texts("#table-neurons .after"), left: texts("#table-neurons .left"),
    shares: texts("[data-live] ~ .share"), picture: texts("#picture .after"),
    infeasible: document.getElementById("explorer").classList.contains("infeasible"),
    most: document.getElementById("feasible-label").textContent,
    milliseconds: Number(document.getElementById("explorer").dataset.milliseconds),
  };
})"""


def move(page, *settings):
    """Set method and sparsity, one pair after the other, and return what is shown each time.

    All in one call: between calls the browser would draw the page.
    """
    return page.run(f"{json.dumps(settings)}.map((setting) => {MOVE}(...setting))")


def check_quiet(page):
    assert page.complaints() == []
    assert [url for url in page.requests() if not url.startswith(("file:", "data:"))] == []


def write(directory, chooser, **about):
    write_record(directory, record_of(chooser, **about))
    return write_report(directory)


def rename(record, number, name):
    """Give a layer another name, in every place of a record that names it."""
    layer = record["layers"][number]
    layer["name"] = record["rows"][layer["row"]]["name"] = record["blocks"][number][0] = name


CHOOSERS = {
    "unet": {"network": "unet"},
    "unet with ties": {"network": "unet", "ties": True},
    "mixed": {"network": "mixed"},
    "mixed with ties": {"network": "mixed", "ties": True},
    "floor": {"network": "mixed", "floor": 3, "ties": True},
    "multiples": {"network": "unet", "multiple": 4, "ties": True},
    "floor and multiples": {"network": "mixed", "floor": 2, "multiple": 2},
    "one score for tied channels": {"network": "mixed", "coupling": "sum"},
    "own resource": {"network": "unet", "resource": "params", "lam": 3.0},
}


USUAL = ("mixed with ties", "floor and multiples", "own resource")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in USUAL else pytest.mark.slow) for name in CHOOSERS],
)
def test_the_slider_shows_what_the_library_computes(browser, tmp_path, name):
    chooser = make_chooser(**CHOOSERS[name])
    record = record_of(chooser, 0.1234)
    write_record(tmp_path, record)
    page = browser.open(write_report(tmp_path))
    methods = explorable(chooser)
    assert set(methods) == {"ranp-f", "ranp-m", "weighted", "vanilla", "layerwise", "random"}
    feasible = infeasible = 0
    asked_for = ("0", "7", "12.34", "33", "50", "62", "78", "95", "100")
    for method, each in methods.items():
        settings = [(method, asked) for asked in asked_for]
        for asked, shown in zip(asked_for, move(page, *settings), strict=True):
            sparsity = float(asked) / 100
            alive = each.choose(sparsity)
            kept = [int(alive[layer.neurons].sum()) for layer in chooser.graph.layers.values()]
            assert [int(n.replace(",", "")) for n in shown["kept"]] == kept, (method, asked)
            assert shown["picture"] == shown["kept"]
            neurons = [len(layer) for layer in chooser.graph.layers.values()]
            assert shown["left"] == list(map(percent, kept, neurons))  # 5 of 8 are 62 %, by both
            assert shown["most"] == f"{100 * each.max_sparsity():.1f} %"
            assert shown["infeasible"] == (not each.keeps_every_layer(sparsity))
            if shown["infeasible"]:
                infeasible += 1
                assert set(shown["live"].values()) == {None}
                continue
            feasible += 1
            costs = count(chooser.model, chooser.graph, alive)
            assert shown["live"] == costs.totals(), (method, asked)
            whole = count(chooser.model, chooser.graph).totals()
            assert shown["shares"] == [
                percent(value, whole[key], 1) for key, value in shown["live"].items()
            ]
            check_layers(shown["charts"], record, costs)
            digits = len(shown["text"]["gflops"].partition(".")[2])
            assert digits >= 4 and shown["text"]["gflops"] == f"{costs.gflops:,.{digits}f}"
    assert feasible > 6 and (infeasible > 6 or chooser.choice.floor)
    check_quiet(page)
    page.close()


def check_layers(charts, record, costs):
    """Costs by layer are the library's, to a 65,535th of the full layer's and the last digit."""
    scales = {"flops": (1e-9, 1e-6, 1e-3), "parameters": (4 / 2**20, 4 / 2**10)}
    for key in ("flops", "activations", "parameters"):
        for text, layer in zip(charts[key], record["layers"], strict=True):
            exact = sum(getattr(costs.layers[row], key) for row in layer["rows"])
            full = sum(record["rows"][row][key][0] for row in layer["rows"])
            value, digits = float(text.replace(",", "")), len(text.partition(".")[2])
            assert any(
                abs(value - scale * exact) <= scale * full / 131_070 + 0.51 * 10.0**-digits
                for scale in scales.get(key, scales["parameters"])
            ), (key, layer["name"])


def test_what_is_typed_moves_to_the_nearest_sparsity_of_the_table(browser, tmp_path):
    page = browser.open(write(tmp_path, make_chooser("unet")))
    for typed, shown in (("33.4", "33"), ("33.6", "34"), ("-5", "0"), ("250", "100")):
        move(page, ("weighted", typed))
        assert page.run("document.getElementById('sparsity-exact').value") == shown
    page.close()


def test_dragging_the_slider_moves_figures_and_charts(browser, tmp_path, capsys):
    chooser = make_chooser("unet")
    page = browser.open(write(tmp_path, chooser))
    before = page.run("document.getElementById('picture').outerHTML")
    veil = page.run("document.querySelector('.veil').getAttribute('width')")
    page.run(
        "(async () => { const r = document.getElementById('sparsity'); r.value = 0.2;"
        "r.dispatchEvent(new Event('input'));"
        "await new Promise(done => requestAnimationFrame(() => setTimeout(done))); })()"
    )
    shown = page.run("Number(document.querySelector('[data-live=gflops]').dataset.value)")
    assert shown == count(chooser.model, chooser.graph, chooser.choose(0.2)).gflops
    assert page.run("document.getElementById('picture').outerHTML") != before
    assert float(page.run("document.querySelector('.veil').getAttribute('width')")) < float(veil)
    moves = move(page, *(("ranp-f", str(percent)) for percent in range(10, 60)))
    times = [shown["milliseconds"] for shown in moves]
    with capsys.disabled():
        print(f" slider: median {sorted(times)[25]:.1f} ms, slowest {max(times):.1f} ms", end="")
    page.run("document.getElementById('reset').click()")
    assert page.run("document.getElementById('picture').outerHTML") == before
    check_quiet(page)
    page.close()


def contrast(page, selector):
    """Contrast of a text with the page, by the rule of WCAG."""
    colours = page.run(
        f"[getComputedStyle(document.querySelector({selector!r})).color,"
        " getComputedStyle(document.body).backgroundColor]"
    )

    def luminance(colour):
        parts = [int(c) / 255 for c in colour.strip("rgb()").split(",")]
        r, g, b = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    light, dark = sorted(map(luminance, colours), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(
    "look",
    [
        "light",
        pytest.param("dark", marks=pytest.mark.slow),
        pytest.param("phone", marks=pytest.mark.slow),
        "phone-dark",
    ],
)
def test_charts_are_drawn_in_both_colour_schemes_and_on_a_phone(browser, tmp_path, look):
    dark, phone = look.endswith("dark"), look.startswith("phone")
    about = {
        "measured": {
            "full": {"seconds": 1.9, "peak_bytes": 2**30},
            "slim": {"seconds": 0.4, "peak_bytes": 2**28},
        },
        "timelines": {
            "full": {"bytes": [2**20 * (50 - abs(i - 25)) for i in range(51)], "backward": 25},
            "slim": {"bytes": [2**18 * (50 - abs(i - 25)) for i in range(51)], "backward": 25},
        },
        "command": "ranp prune net --sparsity 0.4 --out out",
    }
    path = write(tmp_path, make_chooser("unet"), **about)
    size = {"width": 390, "height": 844} if phone else {}
    page = browser.open(path, dark=dark, **size)
    page.screenshot(SCREENSHOTS / f"report-{look}.png", whole=True)
    check_quiet(page)
    assert contrast(page, "h1") > 7
    assert contrast(page, ".lead") > 4.5
    background = page.run("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")
    assert page.run("document.documentElement.scrollWidth") <= size.get("width", 1280)
    drawn = page.run(
        "Object.fromEntries([...document.querySelectorAll('svg')].map((svg, i) => ["
        "svg.id || i, [...svg.querySelectorAll('rect, path, line, circle')].filter(shape => {"
        "const box = shape.getBoundingClientRect(); return box.width + box.height > 0;"
        "}).length]))"
    )
    assert drawn["picture"] >= 3 * 9 + 8 and drawn["timeline"] >= 12
    assert all(shapes > 0 for shapes in drawn.values()), drawn
    page.run("document.getElementById('theme').click()")
    switched = page.run("getComputedStyle(document.body).backgroundColor")
    assert switched == ("rgb(255, 255, 255)" if dark else "rgb(20, 23, 27)")
    page.run("document.getElementById('theme').click()")
    assert page.run("getComputedStyle(document.body).backgroundColor") == background
    page.run("localStorage.clear()")
    page.close()


def test_without_javascript_all_but_the_slider_is_there(browser, tmp_path):
    page = browser.open(write(tmp_path, make_chooser("mixed")), scripts=False)
    page.screenshot(SCREENSHOTS / "report-without-javascript.png", whole=True)
    document = page.call("DOM.getDocument", {"depth": 0})["root"]["nodeId"]

    def box(selector):
        node = page.call("DOM.querySelector", {"nodeId": document, "selector": selector})["nodeId"]
        try:
            return page.call("DOM.getBoxModel", {"nodeId": node})["model"]["height"]
        except RuntimeError:
            return 0  # not displayed

    assert box("#explorer") == 0 and box("#theme") == 0
    assert box("#picture") > 50 and box("#table-flops") > 100 and box(".strips") > 100
    check_quiet(page)
    page.close()


def test_it_prints(browser, tmp_path):
    page = browser.open(write(tmp_path, make_chooser("unet")), dark=True)
    pdf = page.print(SCREENSHOTS / "report.pdf")
    assert pdf.startswith(b"%PDF") and 1 <= pdf.count(b"/Type /Page\n") + pdf.count(b"/Page>>") <= 9
    page.call("Emulation.setEmulatedMedia", {"media": "print"})
    assert page.run("getComputedStyle(document.querySelector('#explorer')).display") == "none"
    assert page.run("getComputedStyle(document.querySelector('h1')).color") == "rgb(0, 0, 0)"
    page.close()


def test_long_names_show_both_ends(browser, tmp_path):
    record = record_of(make_chooser("unet"))
    for number in range(len(record["layers"])):
        rename(record, number, f"upsamples.{number}.conv_block.conv1.conv")
    write_record(tmp_path, record)
    page = browser.open(write_report(tmp_path), width=1000)
    ends = page.run(
        "[...document.querySelectorAll('tbody th .name')].map((name) => {"
        " const [head, tail] = name.children, cell = name.parentElement;"
        " const right = (node) => node.getBoundingClientRect().right;"
        " const number = document.createRange();"
        " number.setStart(head.firstChild, 0); number.setEnd(head.firstChild, 11);"
        " return [right(head) - right(number), right(cell) - right(tail)]; })"
    )
    assert len(ends) >= len(record["layers"])
    # "upsamples.1" and dots behind it: layers differ in what is seen, and nothing is clipped.
    assert all(dots > 8 and room >= 0 for dots, room in ends), ends
    page.close()


def test_hostile_names_are_text(browser, tmp_path):
    chooser = make_chooser("unet")
    record = record_of(chooser, network=HOSTILE, command=f"ranp prune {HOSTILE}", data=HOSTILE)
    for row in record["rows"]:
        row["name"], row["kind"] = HOSTILE, HOSTILE
    for number in range(len(record["layers"])):
        rename(record, number, f"{number}{HOSTILE}")
    record["settings"][HOSTILE] = HOSTILE
    record["environment"][HOSTILE] = HOSTILE
    record["not_counted"] = [HOSTILE]
    methods = record["explorer"]["methods"]
    methods[HOSTILE] = {**methods["vanilla"], "about": HOSTILE}
    write_record(tmp_path, record)
    page = browser.open(write_report(tmp_path))
    assert page.run("document.querySelector('h1').textContent") == HOSTILE
    assert page.run("document.querySelectorAll('script').length") == 3
    assert page.run("document.querySelectorAll('img').length") == 0
    assert page.run("document.querySelector('.bars th[scope=row]').textContent") == f"0{HOSTILE}"
    (shown,) = move(page, (HOSTILE, "100"))
    assert shown["infeasible"]
    assert HOSTILE in page.run("document.getElementById('verdict').textContent")
    check_quiet(page)
    page.close()


def test_a_comparison_sorts(browser, tmp_path):
    networks = [
        Compared(
            "full", 83.8, (83.3, 84.3), {"gflops": 237.85, "memory_mb": 997, "seconds": 1.9}, 5
        ),
        Compared(
            "ranp-f", 83.1, (82.6, 83.5), {"gflops": 15.9, "memory_mb": 190, "seconds": 0.4}, 5
        ),
        Compared(HOSTILE, 80.2, (79.4, 81.6), {"gflops": 11.2, "memory_mb": 212}, 3),
    ]
    comparison = Comparison("Comparison", "mIoU, %", "95 % of the mean", networks)
    page = browser.open(write_text(tmp_path / "comparison.html", render_comparison(comparison)))
    page.screenshot(SCREENSHOTS / "comparison.png", whole=True)
    names = "[...document.querySelectorAll('#compared tbody th')].map(n => n.textContent)"
    press = "document.querySelectorAll('#compared .sort')[{}].click()"
    assert page.run(names) == ["full", "ranp-f", HOSTILE]
    page.run(press.format(4))  # GFLOPs
    assert page.run(names) == [HOSTILE, "ranp-f", "full"]
    page.run(press.format(6))  # seconds: what is missing comes last, both ways
    assert page.run(names) == ["ranp-f", "full", HOSTILE]
    page.run(press.format(6))
    assert page.run(names) == ["full", "ranp-f", HOSTILE]
    points = page.run(
        "[...document.querySelectorAll('.scatter')].map(s => s.querySelectorAll('circle').length)"
    )
    assert points == [3, 3, 2]
    check_quiet(page)
    page.close()


def reproduction(directory):
    """Two networks; the rows of the first were trained, and one of them has a hostile name."""
    columns = [Column("gflops", "GFLOPs"), Column("miou", "mIoU (%)", points=True)]
    columns += [Column(f"more {i}", f"More of number {i} (%)") for i in range(4)]
    further = {f"more {i}": Figure((50.0 + i, 51.0), 83.79, printed_spread=0.2) for i in range(4)}
    figures = {"Full": (237.85, 83.8), "RANP-f": (7.96, 82.5), HOSTILE: (11.2, 80.2)}
    rows = [
        Row(
            "3D-UNet, ShapeNet",
            label,
            {"gflops": Figure((gflops,), 237.85), "miou": Figure((miou,), 83.0), **further},
            note="Layer `encoder.0` keeps one neuron." if label == "RANP-f" else None,
        )
        for label, (gflops, miou) in figures.items()
    ]
    layers = [f"{i}. `layer`" for i in (2, 10, 1)]
    rows += [Row("I3D, UCF101", label, {"gflops": Figure((1.0,))}) for label in layers]
    networks = [
        Compared(label, miou, (miou - 1, miou + 1), {"gflops": gflops, "cpu_seconds": gflops})
        for label, (gflops, miou) in figures.items()
    ]
    drawn = {"3D-UNet, ShapeNet": Comparison("", "mIoU (%)", "95 % of the mean", networks)}
    draw_retained(directory / "fig.svg", ["a", "b"], [8, 16], {"ranp-f": [4, 6]})
    return Reproduction(
        "fig-overview",
        ComparisonTable(
            "Figure 1: methods compared", tuple(columns), tuple(rows), ("Scale `smoke`.",)
        ),
        facts=[("scale", "smoke"), ("data", HOSTILE)],
        drawn=drawn,
        pictures=[directory / "fig.svg"],
        command=f"ranp reproduce fig-overview --out {HOSTILE}",
        about=[("Cells", [("torch", "2")])],
    )


@pytest.mark.parametrize("look", ["light", "phone-dark"])
def test_a_reproduction_sorts_and_fits(browser, tmp_path, look):
    dark = look.endswith("dark")
    size = {"width": 390, "height": 844} if dark else {}
    path = write_text(tmp_path / "fig-overview.html", render_reproduction(reproduction(tmp_path)))
    page = browser.open(path, dark=dark, **size)
    page.screenshot(SCREENSHOTS / f"reproduction-{look}.png", whole=True)
    background = page.run("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")
    assert contrast(page, "h1") > 7 and contrast(page, ".printed") > 4.5
    assert page.run("document.querySelector('.picture img').naturalWidth") > 300
    # Wide tables scroll in their boxes, not the page.
    assert page.run("document.documentElement.scrollWidth") <= size.get("width", 1280)
    boxes = "[...document.querySelectorAll('.scroll')].some(b => b.scrollWidth > b.clientWidth)"
    assert page.run(boxes) is dark

    names = "[...document.querySelectorAll('#beside-{} tbody th')].map(n => n.textContent)"
    press = "document.querySelectorAll('#beside-{} .sort')[{}].click()"
    assert page.run(names.format(1)) == ["Full", "RANP-f [1]", HOSTILE]
    page.run(press.format(1, 1))  # GFLOPs
    assert page.run(names.format(1)) == ["RANP-f [1]", HOSTILE, "Full"]
    page.run(press.format(1, 2))  # mIoU
    page.run(press.format(1, 2))
    assert page.run(names.format(1)) == ["Full", "RANP-f [1]", HOSTILE]
    page.run(press.format(2, 0))  # names, by their numbers
    assert page.run(names.format(2)) == ["1. layer", "2. layer", "10. layer"]
    drawn = (
        "[...document.querySelectorAll('.scatter')].map(s => s.querySelectorAll('circle').length)"
    )
    assert page.run(drawn) == [3, 3]
    assert page.run("document.querySelectorAll('script').length") == 2
    assert page.run("document.querySelectorAll('img').length") == 1
    check_quiet(page)
    page.close()


def test_names_of_candidates_stay_words_on_a_phone(browser, tmp_path):
    deep = {f"layer{number}": 64 for number in range(30)}
    race = {**RACE, "widths": dict.fromkeys(RACE["widths"], deep)}
    write_text(tmp_path / "race.html", render_race(race, f"ranp race {'--budget flops=10% ' * 9}"))
    page = browser.open(tmp_path / "race.html", width=390, height=844)
    lines = page.run(
        "[...document.querySelectorAll('#candidates th:first-child')].map((cell) => {"
        " const range = document.createRange(); range.selectNodeContents(cell);"
        " return new Set([...range.getClientRects()].map((box) => box.top)).size; })"
    )
    assert len(lines) == 3 and max(lines) <= 2  # a name, and a star or an arrow
    command = "document.querySelector('pre')"  # shown as a whole
    assert page.run(f"{command}.scrollWidth - {command}.clientWidth") == 0
    assert page.run("document.documentElement.scrollWidth") <= 390
    check_quiet(page)
    page.close()
