"""Table 6: all six measures of neuron importance, at their largest feasible sparsities."""

from __future__ import annotations

from functools import partial

from ranp.experiments.reproduce import table_vanilla

cells = partial(table_vanilla.cells, name="table-vanilla-full")
show = partial(table_vanilla.show, name="table-vanilla-full")
