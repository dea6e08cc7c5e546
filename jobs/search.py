"""`ray job submit --working-dir . -- python jobs/search.py ...` runs `raydense search ...` on the cluster that the job is submitted to."""

import sys

from raydense.cli import main

main(["search", *sys.argv[1:]])
