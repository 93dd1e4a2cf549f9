"""The report of the 23-layer 3D-UNet: size, seconds to make it, reaction of the slider."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from ranp.graph import build_graph
from ranp.models import find_network
from ranp.pipeline import make_plan
from ranp.pruning import Choice, Chooser
from ranp.recording import make_record, write_record
from ranp.report.page import write_report
from tests.report.browser import Browser, find_chromium
from tests.report.networks import random_scores

# What a move costs: reading, drawing and layout, without the wait for the next frame;
# and the time until a frame has gone by, which is the display's pace and the machine's load, too.
_DRAG = """(async () => {
  const box = document.getElementById("sparsity-exact");
  const range = document.getElementById("sparsity");
  const work = [], frames = [];
  for (let i = 0; i < 100; i++) {
    const began = performance.now();
    box.value = 5 + (i % 70);
    box.dispatchEvent(new Event("input"));
    box.dispatchEvent(new Event("change"));
    document.body.getBoundingClientRect();
    work.push(performance.now() - began);
  }
  for (let i = 0; i < 100; i++) {
    const began = performance.now();
    range.value = 0.05 + 0.01 * (i % 70);
    range.dispatchEvent(new Event("input"));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    frames.push(performance.now() - began);
  }
  const sorted = (values) => values.sort((a, b) => a - b);
  return [sorted(work), sorted(frames)];
})()"""


def run() -> None:
    """Prints one line per figure, with its limit."""
    spec = find_network("unet3d-23-shapenet")
    model = spec.build()
    graph = build_graph(model, spec.input_shape)
    scores = random_scores(graph)
    start = time.perf_counter()
    chooser = Chooser(model, graph, Choice.make("ranp-f", lam=spec.lam), scores)
    plan = make_plan(chooser, 0.5, network=spec.name)
    with tempfile.TemporaryDirectory() as directory:
        write_record(directory, make_record(chooser, plan))
        recorded = time.perf_counter()
        page = write_report(directory)
        done = time.perf_counter()
        print(f"{spec.name}: {graph.neurons:,} neurons, from stored scores")
        print(f"record  {recorded - start:6.2f} s")
        print(f"page    {done - recorded:6.2f} s   together {done - start:.2f} s (at most 3)")
        print(f"size    {page.stat().st_size / 1e6:6.2f} MB (at most 1)")
        _slider(page)


def _slider(page: Path) -> None:
    program = find_chromium()
    if program is None:
        print("slider: no Chromium is installed")
        return
    browser = Browser(program)
    work, frames = browser.open(page).run(_DRAG)
    browser.close()
    for name, times in (("work", work), ("to frame", frames)):
        middle, last = times[len(times) // 2], times[-1]
        print(
            f"slider {name:8} {middle:6.1f} ms median, {last:.1f} ms slowest of 100 (at most 100)"
        )
