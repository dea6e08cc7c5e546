"""`ray job submit --working-dir . -- python jobs/evaluate.py ...` runs `raydense evaluate ...` on the cluster that the job is submitted to."""

import sys

from raydense.cli import main

main(["evaluate", *sys.argv[1:]])
