"""`ray job submit --working-dir . -- python jobs/label.py ...` runs `raydense label ...` on the cluster that the job is submitted to."""

import sys

from raydense.cli import main

main(["label", *sys.argv[1:]])
