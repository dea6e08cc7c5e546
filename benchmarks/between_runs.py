"""Two runs of a finished sweep against each other, within one variant: the paired test of its table, over queries averaged over seeds.

    python benchmarks/between_runs.py SWEEP VARIANT RUN OTHER [--metric RR@10]

as `python benchmarks/between_runs.py out/rocketqav2 complete "retriever 2" "joint retriever"`. Printed: both means, the difference of each
seed, and the p-values of the paired t-test and of the randomisation test, uncorrected.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pandas as pd

from raydense.evaluation.significance import compare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("sweep", "variant", "run", "other"):
        parser.add_argument(name)
    parser.add_argument("--metric", default="RR@10")
    asked = parser.parse_args()
    trials = [t for t in json.loads((Path(asked.sweep) / "sweep.json").read_text())["trials"] if t["variant"] == asked.variant]
    frames = [pd.read_parquet(Path(t["report"]) / "per_query.parquet").assign(seed=t["seed"]) for t in trials]
    values = pd.concat(frames).pivot_table(asked.metric, ["query_id", "seed"], "run")[[asked.run, asked.other]]
    means, seeds = values.groupby("query_id").mean(), values.groupby("seed").mean()
    found = compare(means[asked.other].to_numpy(), means[asked.run].to_numpy())
    each = ", ".join(f"{gap:+.4f}" for gap in seeds[asked.other] - seeds[asked.run])
    print(f"{asked.run} {means[asked.run].mean():.4f}, {asked.other} {means[asked.other].mean():.4f}: {found.difference:+.4f} ({each})")
    print(
        f"{found.wins} queries better, {found.losses} worse, {found.ties} the same; p {found.p_randomisation:.4f} (t-test {found.p_t_test:.4f})"
    )


if __name__ == "__main__":
    main()
