"""`python -m ranp`."""

from ranp.cli import main

main()
