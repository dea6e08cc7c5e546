"""`ray job submit --working-dir . -- python jobs/generate.py ...` runs `raydense generate ...` on the cluster that the job is submitted to."""

import sys

from raydense.cli import main

main(["generate", *sys.argv[1:]])
