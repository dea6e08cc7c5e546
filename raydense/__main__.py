"""`python -m raydense` is the command line."""

from raydense.cli import main

main()
