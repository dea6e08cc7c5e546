"""`ray job submit --working-dir . -- python jobs/export.py ...` runs `raydense export ...` on the cluster that the job is submitted to."""

import sys

from raydense.cli import main

main(["export", *sys.argv[1:]])
