"""`ray job submit --working-dir . -- python jobs/mine.py ...` runs `raydense mine ...` on the cluster that the job is submitted to."""

import sys

from raydense.cli import main

main(["mine", *sys.argv[1:]])
