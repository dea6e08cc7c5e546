"""`ray job submit --working-dir . -- python jobs/sample.py ...` runs `raydense sample ...` on the cluster that the job is submitted to."""

import sys

from raydense.cli import main

main(["sample", *sys.argv[1:]])
