"""`ray job submit --working-dir . -- python jobs/import.py ...` runs `raydense import ...` on the cluster that the job is submitted to."""

import sys

from raydense.cli import main

main(["import", *sys.argv[1:]])
