"""Slim networks through nnU-Net's own pipeline, on real hippocampus: full, RANP, narrowed.

python -m benchmarks._nnunet STORE [--cases 100] [--epochs 10] [--iterations 20] [--seeds 3]

Prepares the raw dataset of `RANP_SHARED` (or ../shared), plans, preprocesses, prunes, trains and
validates with an unpatched nnU-Net on a CPU. A cell whose result is in the store is not computed
again; the table is made of what is there. The patch is the plan's own, the batch is `--batch`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

DATASET = "Dataset004_Hippocampus"
FLOPS = "10%"
ARMS = {"full": None, "RANP-f": "ranp-f", "narrowed everywhere": "layerwise"}
"""Networks by name, and the method that prunes them to the same FLOPs; None prunes nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--cases", type=int, default=100, help="a fifth of them validates")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=20, help="per epoch")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--arm", choices=list(ARMS), action="append", help="only these")
    options = parser.parse_args()
    store = options.store.resolve()
    for name in ("raw", "preprocessed", "results"):
        os.environ[f"nnUNet_{name}"] = str(store / f"{name}_{options.cases}")
    os.environ |= {"nnUNet_compile": "f", "nnUNet_n_proc_DA": "1", "nnUNet_def_n_proc": "1"}
    prepare(options)
    os.environ |= {"nnUNet_n_proc_DA": "0"}
    keys = {key: getattr(options, key) for key in ("cases", "epochs", "iterations", "batch")}
    for seed in range(options.seeds):
        for arm in options.arm or ARMS:
            name = f"{arm.replace(' ', '-')}_s{seed}_" + "_".join(
                f"{k[0]}{v}" for k, v in keys.items()
            )
            path = store / "cells" / f"{name}.json"
            if not path.exists():
                cell = {"arm": arm, "seed": seed, **keys, **run(options, arm, seed)}
                path.parent.mkdir(exist_ok=True)
                path.write_text(json.dumps(cell, indent=1))
    print_table(store, keys)


def configuration(options: argparse.Namespace) -> str:
    return f"3d_fullres_b{options.batch}"


def folder() -> Path:
    return Path(os.environ["nnUNet_preprocessed"]) / DATASET  # noqa: SIM112


def prepare(options: argparse.Namespace) -> None:
    """The raw dataset, nnU-Net's plans, preprocessed data, and a configuration of that batch."""
    plans = folder() / "nnUNetPlans.json"
    if not plans.exists():
        shared = Path(os.environ.get("RANP_SHARED", "../shared")) / "data" / "hippocampus"
        raw = Path(os.environ["nnUNet_raw"]) / DATASET  # noqa: SIM112
        names = [
            p.name for p in sorted(shared.glob("labels/*")) if (shared / "images" / p.name).exists()
        ]
        names = names[: options.cases]
        for name in names:
            image = raw / "imagesTr" / name.replace(".nii.gz", "_0000.nii.gz")
            for source, target in (("images", image), ("labels", raw / "labelsTr" / name)):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(shared / source / name, target)
        about = {
            "channel_names": {"0": "MRI"},
            "labels": {"background": 0, "anterior": 1, "posterior": 2},
            "numTraining": len(names),
            "file_ending": ".nii.gz",
        }
        (raw / "dataset.json").write_text(json.dumps(about))
        command = "nnUNetv2_plan_and_preprocess -d 4 -c 3d_fullres -np 1 -npfp 1"
        program, *arguments = command.split()
        subprocess.run([Path(sys.executable).parent / program, *arguments], check=True)
    content = json.loads(plans.read_text())
    content["configurations"].setdefault(
        configuration(options), {"inherits_from": "3d_fullres", "batch_size": options.batch}
    )
    plans.write_text(json.dumps(content, indent=4))


def run(options: argparse.Namespace, arm: str, seed: int) -> dict[str, Any]:
    """Prune, train and validate one network."""
    import numpy as np
    import torch
    from nnunetv2.run.run_training import get_trainer_from_args

    from ranp.integrations.nnunet import prune_plans

    plans, method = "nnUNetPlans", ARMS[arm]
    about: dict[str, Any] = {"costs": None}
    if method is not None:
        made = prune_plans(
            4,
            configuration(options),
            flops=FLOPS,
            method=method,
            seed=seed,
            device="cpu",
            out_plans=f"nnUNetPlans_{method}_s{seed}",
        )
        plans, about = made.name, {"costs": made.result.plan.costs["slim"]}
    np.random.seed(seed)
    torch.manual_seed(seed)
    trainer = get_trainer_from_args(
        DATASET, configuration(options), 0, plans_identifier=plans, device=torch.device("cpu")
    )
    trainer.num_epochs = options.epochs
    trainer.num_iterations_per_epoch = options.iterations
    trainer.num_val_iterations_per_epoch = 1
    started = time.process_time()
    trainer.run_training()
    seconds = (time.process_time() - started) / options.epochs
    trainer.inference_allowed_mirroring_axes = None  # eight passes would be needed for each window
    trainer.perform_actual_validation()
    output = Path(trainer.output_folder) / "validation" / "summary.json"
    dice = json.loads(output.read_text())["foreground_mean"]["Dice"]
    parameters = sum(p.numel() for p in trainer.network.parameters())
    return {**about, "parameters": parameters, "dice": dice, "cpu_seconds_per_epoch": seconds}


def print_table(store: Path, keys: dict[str, int]) -> None:
    """nnU-Net's validation Dice: mean, standard deviation over seeds, and every run."""
    cells = [json.loads(path.read_text()) for path in sorted((store / "cells").glob("*.json"))]
    cells = [cell for cell in cells if all(cell[key] == value for key, value in keys.items())]
    print("| network | parameters | Dice, mean ± s.d. | runs | CPU s per epoch |")
    print("|---|---|---|---|---|")
    for arm in ARMS:
        rows = sorted((c for c in cells if c["arm"] == arm), key=lambda cell: cell["seed"])
        if rows:
            dice = [row["dice"] for row in rows]
            spread = statistics.stdev(dice) if len(dice) > 1 else math.nan
            parameters = statistics.mean(row["parameters"] for row in rows)
            seconds = statistics.median(row["cpu_seconds_per_epoch"] for row in rows)
            print(
                f"| {arm} | {parameters / 1e6:.2f} M | {statistics.mean(dice):.4f} ± {spread:.4f} "
                f"| {', '.join(f'{d:.4f}' for d in dice)} | {seconds:.1f} |"
            )


if __name__ == "__main__":
    main()
