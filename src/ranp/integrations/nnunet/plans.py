"""Plans files: where they are, what they must hold, and how slim networks stand in them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ranp.errors import IntegrityError, UsageError, suggest
from ranp.files import json_sha256, write_text
from ranp.schemas import validate
from ranp.slimming import Plan

FACTORY = "ranp.integrations.nnunet.slim_network"
_PREPROCESSED, _RESULTS = "nnUNet_preprocessed", "nnUNet_results"
_ENTRIES = {"configurations": dict, "dataset_name": str, "plans_name": str}
"""What every plans file of nnU-Net has, and as what."""


@dataclass(frozen=True)
class SlimConfiguration:
    """What a slim configuration holds besides nnU-Net's own entries, under `arch_kwargs["ranp"]`.

    Attributes:
        network_class_name: Class of the full network.
        plan: The kept neurons, as `ranp.Plan.to_dict` returns them.
        source: Name of the plans that were pruned.
        command: The command that makes it again; empty if it was made in Python.
        training: Batch, patch, optimizer, precision and device of a training step.
        memory: Predicted bytes of that step, by network ("full", "slim").
        nnunet_estimate: What nnU-Net's planner estimates of both, in GB; empty if it cannot say.
        instead: What nnU-Net plans for the memory budget: "patch_size", "batch_size" and
            "estimate"; empty where no memory was budgeted or its planner cannot run.
    """

    network_class_name: str
    plan: Mapping[str, Any]
    source: str
    command: str
    training: Mapping[str, Any]
    memory: Mapping[str, int]
    nnunet_estimate: Mapping[str, float]
    instead: Mapping[str, Any]


def dataset_folder(dataset: int | str) -> Path:
    """Return the preprocessed folder of a dataset: a number, or a name as "Dataset004_Hippocampus".

    Raises:
        UsageError: nnU-Net's folders are not set, or there is no such dataset.
    """
    root = os.environ.get(_PREPROCESSED)
    if root is None:
        raise UsageError(
            f"{_PREPROCESSED} is not set: name the folder of nnU-Net's preprocessed data"
        )
    if not Path(root).is_dir():
        raise UsageError(f"{_PREPROCESSED} is '{root}', which is not a folder")
    names = sorted(each.name for each in Path(root).glob("Dataset*") if each.is_dir())
    wanted = f"Dataset{int(dataset):03d}_" if str(dataset).isdecimal() else str(dataset)
    found = [
        name for name in names if name == wanted or (wanted[-1:] == "_" and name.startswith(wanted))
    ]
    if len(found) != 1:
        reason = "several datasets have" if found else "no preprocessed dataset has"
        todo = "give the whole name" if found else "run nnUNetv2_plan_and_preprocess first"
        raise UsageError(
            f"{reason} the number or name '{dataset}' in '{root}'; {todo}."
            f"{suggest(str(dataset), names)}"
        )
    return Path(root) / found[0]


def read_plans(path: Path) -> dict[str, Any]:
    """Read a plans file of nnU-Net.

    Raises:
        UsageError: There is no such file.
        IntegrityError: It is not nnU-Net's.
    """
    try:
        plans = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        others = [each.stem for each in path.parent.glob("*Plans*.json")]
        written = " `nnUNetv2_plan_and_preprocess` and `ranp nnunet prune` write such files."
        known = suggest(path.stem, others) or written
        raise UsageError(f"plans '{path}' do not exist.{known}") from error
    except IsADirectoryError as error:
        raise UsageError(f"'{path}' is a folder; name the plans file in it") from error
    except ValueError as error:
        raise IntegrityError(
            f"'{path}' is not valid JSON ({error}); make the plans again"
        ) from error
    entries = plans if isinstance(plans, dict) else {}
    missing = [name for name, kind in _ENTRIES.items() if not isinstance(entries.get(name), kind)]
    if missing:
        raise IntegrityError(
            f"'{path}' is not a plans file of nnU-Net v2: it has no {', '.join(missing)}"
        )
    return entries


def check_configuration(plans: Mapping[str, Any], name: str, folder: Path) -> None:
    """Refuse a configuration that cannot be pruned, or whose preprocessed data is missing."""
    configurations = plans["configurations"]
    if name not in configurations:
        raise UsageError(
            f"plans '{plans['plans_name']}' have no configuration '{name}'."
            f"{suggest(name, configurations)}"
        )
    found = _resolved(configurations, name)
    if is_slim(found):
        raise UsageError(
            f"configuration '{name}' of '{plans['plans_name']}' is pruned already; prune the plans "
            "it was made from"
        )
    if found.get("previous_stage"):
        raise UsageError(
            f"'{name}' is the second stage of a cascade, whose inputs are another network's "
            "predictions; cascades cannot be pruned: take 3d_fullres or 3d_lowres"
        )
    identifier = found.get("data_identifier")
    if identifier is None or not (folder / identifier).is_dir():
        raise IntegrityError(
            f"the preprocessed data '{folder / str(identifier)}' is missing; run "
            f"nnUNetv2_preprocess -d {plans['dataset_name'][7:10]} "
            f"-plans_name {plans['plans_name']} -c {name}"
        )


def refuse_trained_plans(dataset: str, plans: str, configuration: str) -> None:
    """Refuse to overwrite plans that were trained with: `nnUNetv2_train --c` would read them.

    Raises:
        UsageError: nnU-Net's results have a checkpoint of them.
    """
    pattern = f"{dataset}/*__{plans}__{configuration}/fold_*/checkpoint_*.pth"
    results = os.environ.get(_RESULTS)
    trained = sorted(Path(results).glob(pattern)) if results else []
    if trained:
        raise UsageError(
            f"slim plans must not be called '{plans}': '{trained[0].parents[1]}' was trained with "
            "plans of that name; give another with --out-plans, or remove that folder"
        )


def _resolved(configurations: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a configuration with what it inherits; nnU-Net itself refuses circles."""
    found: dict[str, Any] = {}
    passed = set()
    while name in configurations and name not in passed:
        passed.add(name)
        found = {**configurations[name], **found}
        name = configurations[name].get("inherits_from", "")
    return found


def is_slim(configuration: Mapping[str, Any]) -> bool:
    """Return whether a configuration's network was slimmed by ranp."""
    return bool(configuration.get("architecture", {}).get("network_class_name") == FACTORY)


def slim_configuration(
    configuration: Mapping[str, Any], about: SlimConfiguration
) -> dict[str, Any]:
    """Return a configuration (without inheritance) with a slim network in place of the full one.

    Everything else stays, so the preprocessed data is that of the full plans. The full network's
    arguments stay flat: nnU-Net's trainer reads `strides` among them. A first stage loses its
    second: that one would be looked for in the same plans.
    """
    architecture, entry = configuration["architecture"], asdict(about)
    return {
        **{k: v for k, v in configuration.items() if k not in ("inherits_from", "next_stage")},
        "architecture": {
            **architecture,
            "network_class_name": FACTORY,
            "arch_kwargs": {
                **architecture["arch_kwargs"],
                "ranp": {**entry, "sha256": json_sha256(entry)},
            },
        },
    }


def parse_slim_entry(entry: object, source: str) -> SlimConfiguration:
    """Return what `arch_kwargs["ranp"]` of a slim configuration holds.

    nnU-Net may have been in it; entries of an earlier version are not sealed.

    Raises:
        IntegrityError: It was changed, or is not that of a slim configuration.
    """
    values = dict(entry) if isinstance(entry, Mapping) else {}
    seal = values.pop("sha256", None)
    if seal is not None and seal != json_sha256(values):
        raise IntegrityError(
            f"{source} was changed after it was written (the SHA-256 of the 'ranp' entry differs); "
            "make it again with ranp nnunet prune"
        )
    validate({"kind": "slim-configuration", "schema": 1, **values}, "slim-configuration", source)
    Plan.from_dict(values["plan"], source)
    return SlimConfiguration(**{each.name: values[each.name] for each in fields(SlimConfiguration)})


def write_slim_plans(
    path: Path, source: Mapping[str, Any], name: str, configuration: Mapping[str, Any]
) -> None:
    """Write a slim configuration into a plans file, in which other slim ones stay.

    Full configurations are left out: under the name of slim plans they would mislead.
    """
    kept = {}
    if path.exists():
        others = read_plans(path)["configurations"]
        if not all(is_slim(each) for each in others.values()):
            raise UsageError(
                f"'{path}' holds nnU-Net's own plans; choose another name for slim ones"
            )
        kept = {key: value for key, value in others.items() if key != name}
    plans = {
        **source,
        "plans_name": path.stem,
        "configurations": {**kept, name: dict(configuration)},
    }
    write_text(path, json.dumps(plans, indent=4) + "\n")


def report_folder(path: Path, configuration: str) -> Path:
    """Return the folder of the report page of a slim configuration."""
    return path.with_name(f"{path.stem}_report") / configuration


def read_slim_plans(path: str | Path) -> dict[str, SlimConfiguration]:
    """Read the slim configurations of a plans file, or of the `plans.json` beside a checkpoint.

    Raises:
        UsageError: There is none in it.
        IntegrityError: It is not a plans file, or what it holds is not complete.
    """
    configurations = read_plans(Path(path))["configurations"]
    found = {}
    for name, configuration in configurations.items():
        if is_slim(configuration):
            arguments = configuration["architecture"].get("arch_kwargs")
            entry = arguments.get("ranp") if isinstance(arguments, dict) else None
            found[name] = parse_slim_entry(entry, f"'{path}'")
    if not found:
        raise UsageError(
            f"'{path}' holds no slim network; make one with ranp nnunet prune DATASET CONFIG"
        )
    return found
