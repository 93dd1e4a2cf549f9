"""The command line. One file per command; torch is imported inside the commands that need it."""

from __future__ import annotations

import errno
import os
import signal
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from ranp._version import __version__
from ranp.cli import data, nnunet
from ranp.errors import RanpError, is_out_of_memory, settings_as_options
from ranp.signals import Interrupted
from ranp.user_code import load_module


class _Commands(typer.core.TyperGroup):
    """The commands; one that is interrupted says so, where Typer would end without a word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted(signal.SIGINT, "interrupted") from error


app = typer.Typer(
    name="ranp",
    cls=_Commands,
    help="Make 3D CNNs small enough to train: resource aware neuron pruning at initialization.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_PANELS = {
    "Prune": "demo profile prune fit score plan search inspect methods",
    "Train": "train evaluate predict runs",
    "Compare and report": "report compare race reproduce",
    "Measure": "bench doctor",
    "Deploy": "export",
}
"""Commands by heading of the help, in its order; each is a module of that name."""

for panel, names in _PANELS.items():
    for name in names.split():
        module = import_module(f"ranp.cli.{name}")
        app.command(name, rich_help_panel=panel)(module.command)
app.add_typer(data.app, name="data", rich_help_panel="Train")
app.add_typer(nnunet.app, name="nnunet", rich_help_panel="Train")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ranp {__version__}")
        raise typer.Exit


@app.callback()
def _ranp(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    extensions: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="Your own module that registers methods, networks, data sets, resources or "
            "operation rules; may be repeated.",
        ),
    ] = None,
) -> None:
    context.with_resource(settings_as_options())
    for name in extensions or ():
        load_module(name, "--import")


# Typer carries its own copy of click in newer versions; this is ClickException in all of them.
_ClickException = typer.BadParameter.__mro__[2]


def main() -> None:
    """Run a command; an error is printed as one line, and its exit code says what kind it is."""
    warnings.formatwarning = _format_warning
    try:
        sys.exit(app(standalone_mode=False))
    except RanpError as error:
        _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", 130)
    except BrokenPipeError:
        # The reader of our output has gone; Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        refused = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        _fail(f"{error.filename or 'file'}: {error.strerror or error}", 2 if refused else 1)
    except Exception as error:
        if isinstance(error, _ClickException):
            _fail_usage(error)
        if os.environ.get("RANP_TRACEBACK"):
            raise
        reason = " ".join(str(error).split())
        if is_out_of_memory(error):
            _fail(f"not enough memory ({reason[:200]}); use smaller volumes or batches", 1)
        _fail(
            f"internal error: {type(error).__name__}: {reason} "
            "(RANP_TRACEBACK=1 shows where; please report it)",
            1,
        )


_format_with_source = warnings.formatwarning


def _format_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Return a warning of this package as one line, without the place in its source."""
    if Path(filename).is_relative_to(Path(__file__).parents[1]):
        return f"ranp: warning: {message}\n"
    return _format_with_source(message, category, filename, lineno, line)


def _fail_usage(error: Any) -> NoReturn:
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help text
        error.show()
        sys.exit(0)
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "ranp"
    message = " ".join(error.format_message().split()).replace("Value error, ", "")
    _fail(f"{message.rstrip('.')}; see '{command} --help'", 2)


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"ranp: {message}", err=True)
    sys.exit(code)
