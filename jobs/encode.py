"""`ray job submit --working-dir . -- python jobs/encode.py ...` runs `raydense encode ...` on the cluster that the job is submitted to."""

import sys

from raydense.cli import main

main(["encode", *sys.argv[1:]])
