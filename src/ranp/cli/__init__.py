"""The command line. One file per command; torch is imported inside the commands that need it."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from ranp._version import __version__
from ranp.cli import data, demo, inspect, methods, plan, profile, prune, score, search
from ranp.errors import RanpError

app = typer.Typer(
    name="ranp",
    help="Make 3D CNNs small enough to train: resource aware neuron pruning at initialization.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (profile, prune, score, plan, search, inspect, methods, demo):
    app.command(module.__name__.rpartition(".")[2])(module.command)
app.add_typer(data.app, name="data")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ranp {__version__}")
        raise typer.Exit


@app.callback()
def _ranp(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="And exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Runs a command; errors come out as one line and the exit code that says what kind it was."""
    try:
        app()
    except RanpError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except BrokenPipeError:
        # The reader of our output has gone; Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _fail(f"{error.filename or 'file'}: {error.strerror or error}", 1)
    except Exception as error:
        if os.environ.get("RANP_TRACEBACK"):
            raise
        reason = " ".join(str(error).split())
        _fail(
            f"internal error: {type(error).__name__}: {reason} "
            "(RANP_TRACEBACK=1 shows where; please report it)",
            1,
        )


def _fail(message: str, code: int) -> None:
    typer.echo(f"ranp: {message}", err=True)
    sys.exit(code)
