"""The program: `ranp`, `python -m ranp`."""

from ranp.signals import end_while_starting


def main() -> None:
    """Run a command."""
    end_while_starting()
    from ranp.cli import main as run

    run()


if __name__ == "__main__":
    main()
