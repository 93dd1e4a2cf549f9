"""Schemas of the files that ranp writes, a module for each kind of file, and how they are read."""

from ranp.schemas.reading import parse_metadata, read_file, validate
from ranp.schemas.run import AVERAGED_EPOCHS, averaged
from ranp.schemas.run_directory import (
    read_epochs,
    read_run_file,
    read_training,
    run_id,
    seal_epochs,
)

__all__ = [
    "AVERAGED_EPOCHS",
    "averaged",
    "parse_metadata",
    "read_epochs",
    "read_file",
    "read_run_file",
    "read_training",
    "run_id",
    "seal_epochs",
    "validate",
]
