"""`ray job submit --working-dir . -- python jobs/split.py ...` runs `raydense split ...` on the cluster that the job is submitted to."""

import sys

from raydense.cli import main

main(["split", *sys.argv[1:]])
