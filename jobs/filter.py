"""`ray job submit --working-dir . -- python jobs/filter.py ...` runs `raydense filter ...` on the cluster that the job is submitted to."""

import sys

from raydense.cli import main

main(["filter", *sys.argv[1:]])
