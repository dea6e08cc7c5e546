"""`ray job submit -- python jobs/pool.py start ...` runs `raydense pool start ...` on the cluster that the job is submitted to."""

import sys

from raydense.cli import main

main(["pool", *sys.argv[1:]])
