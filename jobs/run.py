"""`ray job submit --working-dir . -- python jobs/run.py ...` runs `raydense run ...` on the cluster that the job is submitted to."""

import sys

from raydense.cli import main

main(["run", *sys.argv[1:]])
