"""Runs the command line as `python -m raydense`."""

from raydense.cli import main

main()
