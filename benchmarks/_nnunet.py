"""Slim networks through nnU-Net's own pipeline, on real hippocampus.

Networks: full, RANP-f, narrowed everywhere, and the winner of a race.

python -m benchmarks._nnunet STORE [--cases 100] [--epochs 16] [--iterations 50] [--seeds 3]

Prepares the raw dataset of `RANP_SHARED` (or ../shared), plans, preprocesses, prunes, trains and
validates with an unpatched nnU-Net on a CPU. A cell whose result is in the store is not computed
again; the table is made of what is there. Patch and batch are those of a configuration that
inherits from 3d_fullres. nnU-Net's trainer without mirroring is taken: mirrored, the front of a
hippocampus is hard to tell from its back, and short trainings find one of the two only.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ranp.experiments.statistics import compare_paired, describe_difference, summarise
from ranp.files import write_text
from ranp.trials.candidates import DEFAULT_CANDIDATES

DATASET = "Dataset004_Hippocampus"
FLOPS = "10%"
ARMS = {"full": None, "RANP-f": "ranp-f", "narrowed everywhere": "thin", "race": "race"}
"""Networks by name, and the method that prunes them to the same FLOPs; None prunes nothing."""
SETTINGS = ("cases", "epochs", "iterations", "batch", "patch")
"""What cells of one table have in common."""
VALIDATION_BATCHES = 4
"""Batches of nnU-Net's pseudo Dice after each epoch."""
CANDIDATES = DEFAULT_CANDIDATES[:5]
COLUMNS = (
    *("network", "FLOPs", "parameters", "Dice, mean ± s.d.", "every run", "its worse class"),
    "CPU s per epoch",
)
RACE_ITERATIONS = 1200
"""Most iterations of a race, over all candidates: 5 % of a training of 24,000."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--cases", type=int, default=100, help="a fifth of them validates")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--iterations", type=int, default=50, help="per epoch")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--patch", default="24x40x24")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--arm", choices=list(ARMS), action="append", help="only these")
    options = parser.parse_args()
    store = options.store.resolve()
    for name in ("raw", "preprocessed", "results"):
        os.environ[f"nnUNet_{name}"] = str(store / f"{name}_{options.cases}")
    os.environ |= {"nnUNet_compile": "f", "nnUNet_n_proc_DA": "1", "nnUNet_def_n_proc": "1"}
    prepare(options)
    os.environ |= {"nnUNet_n_proc_DA": "0"}
    keys = {key: getattr(options, key) for key in SETTINGS}
    for seed in range(options.seeds):  # so that whole comparisons are complete early
        for arm in options.arm or ARMS:
            name = f"{arm.replace(' ', '-')}_s{seed}_" + "_".join(
                f"{k[0]}{v}" for k, v in keys.items()
            )
            path = store / "cells" / f"{name}.json"
            if not path.exists():
                plans, about = prune(options, arm, seed)
                same = [c for c in cells(store, keys) if is_same(c, about, seed)]
                result = {**same[0], "same_as": same[0]["arm"]} if same else {}
                cell = result or {**keys, "seed": seed, **train(options, plans, seed)}
                path.parent.mkdir(exist_ok=True)
                write_text(path, json.dumps({**cell, "arm": arm, **about}, indent=1))
    print_table(cells(store, keys))


def cells(store: Path, keys: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the finished cells of these settings."""
    found = [json.loads(path.read_text()) for path in sorted((store / "cells").glob("*.json"))]
    return [cell for cell in found if all(cell[key] == value for key, value in keys.items())]


def is_same(cell: dict[str, Any], about: dict[str, Any], seed: int) -> bool:
    """Whether a cell trained a network of the same widths with the same seed: the same bits."""
    return cell["seed"] == seed and "neurons" in about and cell.get("neurons") == about["neurons"]


def configuration(options: argparse.Namespace) -> str:
    return f"3d_fullres_b{options.batch}_p{options.patch}"


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
    content["configurations"][configuration(options)] = {
        "inherits_from": "3d_fullres",
        "batch_size": options.batch,
        "patch_size": [int(edge) for edge in options.patch.split("x")],
    }
    plans.write_text(json.dumps(content, indent=4))


def trainer_class() -> type:
    from nnunetv2.training.nnUNetTrainer.variants.data_augmentation.nnUNetTrainerNoMirroring import (  # noqa: E501
        nnUNetTrainerNoMirroring,
    )

    return nnUNetTrainerNoMirroring


def prune(options: argparse.Namespace, arm: str, seed: int) -> tuple[str, dict[str, Any]]:
    """Return the plans of a network, and what is known of it; every seed has scores, and a race."""
    from ranp.integrations.nnunet import prune_plans

    method = ARMS[arm]
    if method is None:
        return "nnUNetPlans", {}
    how: dict[str, Any] = {"method": method, "seed": seed}
    if method == "race":
        half = options.iterations // 2
        how |= {"epochs": 2 * options.epochs, "iterations": half}
        cost = RACE_ITERATIONS / (options.epochs * options.iterations)
        how |= {"candidates": CANDIDATES, "cost": cost}
    made = prune_plans(
        4,
        configuration(options),
        flops=FLOPS,
        device="cpu",
        trainer=trainer_class(),
        out_plans=f"nnUNetPlans_{method}_s{seed}",
        tell=print,
        **how,
    )
    plan = made.result.plan
    about = {"costs": plan.costs, "neurons": neurons(plan)}
    return made.name, about if made.race is None else {**about, "race": made.race.to_dict()}


def train(options: argparse.Namespace, plans: str, seed: int) -> dict[str, Any]:
    """Train and validate the network of some plans."""
    from ranp.integrations.nnunet.trainer import TrainerChoice, seeded

    with seeded(seed):
        chosen = TrainerChoice(DATASET, configuration(options), plans, 0, trainer_class())
        trainer = chosen.make("cpu")
        trainer.num_epochs = options.epochs
        trainer.num_iterations_per_epoch = options.iterations
        trainer.num_val_iterations_per_epoch = VALIDATION_BATCHES
        trainer.logger.plot_progress_png = lambda folder: None  # as costly as a short epoch
        started = time.process_time()
        trainer.run_training()
        seconds = (time.process_time() - started) / options.epochs
    trainer.perform_actual_validation()
    summary = json.loads((Path(trainer.output_folder) / "validation/summary.json").read_text())
    logged = trainer.logger.local_logger.my_fantastic_logging
    return {
        "parameters": sum(p.numel() for p in trainer.network.parameters()),
        "dice": summary["foreground_mean"]["Dice"],
        "classes": {label: each["Dice"] for label, each in summary["mean"].items()},
        "pseudo_dice": [float(value) for value in logged["mean_fg_dice"]],
        "loss": [float(value) for value in logged["train_losses"]],
        "cpu_seconds_per_epoch": seconds,
    }


def neurons(plan: Any) -> dict[str, int]:
    return {name: len(layer.kept) for name, layer in plan.layers.items()}


def print_table(cells: list[dict[str, Any]]) -> None:
    """nnU-Net's validation Dice, what races cost, and how sure differences are."""
    found = {arm: {c["seed"]: c for c in cells if c["arm"] == arm} for arm in ARMS}
    found = {arm: dict(sorted(rows.items())) for arm, rows in found.items() if rows}
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for arm, rows in found.items():
        print(f"| {arm} | {' | '.join(columns(list(rows.values())))} |")
    for seed, cell in found.get("race", {}).items():
        race = cell["race"]
        print(
            f"Race of seed {seed}: {race['winner']} wins, {race['why']} It cost "
            f"{100 * race['spent']:.0f} % of a training, {race['cpu_seconds']:.0f} CPU s."
        )
    for arm, other in itertools.combinations(found, 2):
        seeds = sorted(set(found[arm]) & set(found[other]))
        if seeds:
            dice = [[found[each][seed]["dice"] for seed in seeds] for each in (arm, other)]
            print(describe_difference(arm, other, compare_paired(*dice)))


def columns(rows: list[dict[str, Any]]) -> list[str]:
    """What the table says of the runs of one network."""
    full = {"full": {"gflops": 1.0}, "slim": {"gflops": 1.0}}
    costs = [row.get("costs", full) for row in rows]
    flops = statistics.mean(each["slim"]["gflops"] / each["full"]["gflops"] for each in costs)
    dice = summarise([row["dice"] for row in rows])
    spread = "one run" if dice.std is None else f"± {dice.std:.3f}"
    return [
        f"{100 * flops:.1f} %",
        f"{statistics.mean(row['parameters'] for row in rows) / 1e6:.2f} M",
        f"{dice.mean:.3f} {spread}",
        ", ".join(f"{row['dice']:.3f}" for row in rows),
        ", ".join(f"{min(row['classes'].values()):.2f}" for row in rows),
        f"{statistics.median(row['cpu_seconds_per_epoch'] for row in rows):.1f}",
    ]


if __name__ == "__main__":
    main()
