"""Figure 9: neuron importance by MNMG-sum beside MPMG-sum."""

from __future__ import annotations

from functools import partial

from ranp.experiments.reproduce import fig_importance

cells = partial(fig_importance.cells, name="fig-mnmg")
show = partial(fig_importance.show, name="fig-mnmg")
