"""Writes docs/networks.md: python -m tests.zoo.report > docs/networks.md (`make networks`)."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Iterable

from ranp.errors import TraceError
from ranp.graph import build_graph
from tests.oracle import compare, random_alive, randomize_
from tests.zoo.case import Case
from tests.zoo.monai_networks import NETWORKS
from tests.zoo.paper_networks import NETWORKS_OF_THE_PAPER
from tests.zoo.topologies import TOPOLOGIES

_HEAD = """# Networks tried

Which networks `ranp` can prune: those of the paper, most of MONAI, and small hard cases. Every
network is traced on fake tensors. Then 50 % and 80 % of its removable channel classes are removed
at random, and the slim network is compared with the full one whose removed channels are masked
(eval mode, float64, random inputs).

- **removable**: the share of neurons (output channels of convolutions and linear layers) that can
  be removed. The rest is the network's output, tied to its input, or fixed by hard-coded numbers.
- **error**: the largest difference between slim and masked network, relative to the largest
  output. Group, layer and RMS norm mix channels in their statistics, so removing channels changes
  the function; there the statistics are frozen to those of the masked network, also for norms
  that are written by hand.
- **trace**: seconds of CPU time to find the channel graph.

Made by `make networks`.
"""


def row(case: Case) -> str:
    """A line of the table."""
    with contextlib.redirect_stdout(sys.stderr):  # MONAI gives advice on it
        return _row(case)


def _row(case: Case) -> str:
    model = randomize_(case.make())
    start = time.process_time()
    try:
        graph = build_graph(model, case.inputs())
    except TraceError as error:
        return f"| {case.name} | {case.about} | refused: {error} | | | | |"
    seconds = time.process_time() - start
    free = sum(int(graph.removable[layer.neurons].sum()) for layer in graph.layers.values())
    errors = [
        compare(
            model, graph, random_alive(graph, share), case.inputs(), both_ends=case.both_ends
        ).error
        for share in (0.5, 0.8)
    ]
    share = f"{100 * free / graph.neurons:.0f} % of {graph.neurons}"
    return (
        f"| {case.name} | {case.about} | yes | {share} | {errors[0]:.0e} | {errors[1]:.0e} "
        f"| {seconds:.2f} |"
    )


def table(title: str, cases: Iterable[Case]) -> None:
    """A titled table, line by line as results come in."""
    print(f"\n## {title}\n")
    print("| network | about | traced | removable | error at 50 % | error at 80 % | trace [s] |")
    print("|---|---|---|---:|---:|---:|---:|")
    for case in cases:
        print(row(case), flush=True)
        print(case.name, file=sys.stderr)


def main() -> None:
    """All tables."""
    warnings.simplefilter("ignore")
    build_graph(TOPOLOGIES[0].make(), TOPOLOGIES[0].inputs())  # the first one imports the tracer
    print(_HEAD, end="")
    table("Networks of the paper", NETWORKS_OF_THE_PAPER)
    table("MONAI", NETWORKS)
    table("Small topologies, one per case", TOPOLOGIES)


if __name__ == "__main__":
    main()
