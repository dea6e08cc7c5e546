"""`ray job submit --working-dir . -- python jobs/rerank.py ...` runs `raydense rerank ...` on the cluster that the job is submitted to."""

import sys

from raydense.cli import main

main(["rerank", *sys.argv[1:]])
