"""nnU-Net v2: slim networks in plans files, for nnU-Net's own trainer and predictor.

`prune_plans` writes a plans file whose `network_class_name` is `slim_network`, and whose
`arch_kwargs` hold the kept neurons. nnU-Net trains, continues, predicts and exports as always.
"""

from ranp.integrations.nnunet.network import slim_network
from ranp.integrations.nnunet.plans import SlimConfiguration, read_slim_plans
from ranp.integrations.nnunet.pruning import PrunedPlans, prune_plans
from ranp.integrations.nnunet.summary import slim_plans_summary

__all__ = [
    "PrunedPlans",
    "SlimConfiguration",
    "prune_plans",
    "read_slim_plans",
    "slim_network",
    "slim_plans_summary",
]
