"""What nnU-Net's own planner estimates, and what it would plan for a memory budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import nn

from ranp.integrations.nnunet.network import set_deep_supervision
from ranp.integrations.nnunet.trainer import nnunet_environment


def estimate(
    plans: Mapping[str, Any], configuration: Mapping[str, Any], network: nn.Module
) -> float | None:
    """Return nnU-Net's estimate of a network's training memory at the configuration's patch, in GB.

    The network has deep supervision. None where its planner cannot run: it needs the raw dataset.
    """
    planner = _planner(plans, 8.0)
    if planner is None or not hasattr(network, "compute_conv_feature_map_size"):
        return None
    set_deep_supervision(network, False)  # as its planner builds networks
    size = network.compute_conv_feature_map_size(configuration["patch_size"])  # type: ignore[operator]
    set_deep_supervision(network, True)
    return _gigabytes(planner, size, configuration)


def plan_instead(
    plans: Mapping[str, Any], configuration: Mapping[str, Any], gigabytes: float
) -> dict[str, Any]:
    """Return what nnU-Net plans for a GPU: a smaller patch where ranp prunes the network.

    Returns:
        "patch_size", "batch_size" and its "estimate" in GB; empty where its planner cannot run.
    """
    planner = _planner(plans, gigabytes)
    if planner is None:
        return {}
    spacing = np.array(configuration["spacing"])
    median = np.array(configuration["median_image_size_in_voxels"])
    voxels = float(math.prod(median) * planner.dataset_json["numTraining"])
    sizes: dict[str, Any] = {}
    with nnunet_environment(nnUNet_n_proc_DA="1"):  # it becomes a number of threads
        found = planner.get_plans_for_configuration(spacing, median, "", voxels, sizes)
    patch = [int(edge) for edge in found["patch_size"]]
    size = list(sizes.values())[-1]
    planned = {"patch_size": patch, "batch_size": int(found["batch_size"])}
    return {**planned, "estimate": _gigabytes(planner, size, planned)}


def _planner(plans: Mapping[str, Any], gigabytes: float) -> Any:
    """Return the planner that made some plans, for a GPU; None where it cannot run."""
    import nnunetv2
    from nnunetv2.utilities.find_class_by_name import recursive_find_python_class

    folder = f"{nnunetv2.__path__[0]}/experiment_planning"
    name = plans.get("experiment_planner_used", "")
    kind = recursive_find_python_class(folder, name, "nnunetv2.experiment_planning")
    if kind is None:
        return None
    with nnunet_environment():
        try:
            return kind(plans["dataset_name"], gpu_memory_target_in_gb=gigabytes)
        except (OSError, RuntimeError):  # no raw dataset, or no fingerprint
            return None


def _gigabytes(planner: Any, size: float, configuration: Mapping[str, Any]) -> float:
    """Return the estimate of a training step from the size of a network's feature maps."""
    dims = f"{len(configuration['patch_size'])}d"
    per_sample = float(size) / getattr(planner, f"UNet_reference_val_{dims}")
    reference_batch = getattr(planner, f"UNet_reference_val_corresp_bs_{dims}")
    scale = planner.UNet_reference_val_corresp_GB / reference_batch
    return float(per_sample * configuration["batch_size"] * scale)
