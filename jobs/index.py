"""`ray job submit --working-dir . -- python jobs/index.py ...` runs `raydense index ...` on the cluster that the job is submitted to."""

import sys

from raydense.cli import main

main(["index", *sys.argv[1:]])
