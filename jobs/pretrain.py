"""`ray job submit --working-dir . -- python jobs/pretrain.py ...` runs `raydense pretrain ...` on the cluster that the job is submitted to."""

import sys

from raydense.cli import main

main(["pretrain", *sys.argv[1:]])
