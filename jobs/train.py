"""`ray job submit --working-dir . -- python jobs/train.py ...` runs `raydense train ...` on the cluster that the job is submitted to."""

import sys

from raydense.cli import main

main(["train", *sys.argv[1:]])
