"""How the cost of each stage grows with the number of passages: a picture on logarithmic axes, and the slope of each line as a table.

    python benchmarks/growth.py FOLDER FOLDER ... --picture docs/benchmarks/growth.png

Each folder is the `--work` of a `benchmarks/wikipedia_scale.py` at another number of passages. Seconds include the start of Ray and of
the command, so the slope is taken between the two largest sizes: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

PASSAGES = "sample"
_PANELS = {"corpus": ("sample", "split", "encode"), "index": ("index",), "search and mining": ("search", "mine", "evaluate")}  # by verb
_SMALL = ("sample of a tenth", "encode queries")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    measured = [json.loads((folder / "measured.json").read_text()) for folder in given.folders]
    measured.sort(key=lambda rows: rows[PASSAGES]["things"])
    lines = {name: points for name in measured[-1] if len(points := _points(measured, name)) > 1}
    print("| stage | " + " | ".join(f"{rows[PASSAGES]['things']:,}" for rows in measured) + " | slope | largest process, slope |")
    print("|" + " --- |" * (len(measured) + 3))
    for name, points in lines.items():
        seconds = {size: second for size, second, _ in points}
        cells = [f"{seconds[size]:,.0f} s" if (size := rows[PASSAGES]["things"]) in seconds else "" for rows in measured]
        print(f"| {name} | " + " | ".join(cells) + f" | {_slope(points, 1):.2f} | {_slope(points, 2):.2f} |")
    if given.picture:
        _draw(lines, given.picture)


def _points(measured: list[dict[str, dict]], name: str) -> list[tuple[int, float, int]]:
    """Passages, seconds and the bytes of the largest process, of each size at which the stage was measured to its end."""
    return [(rows[PASSAGES]["things"], r["seconds"], r["peaks"]["process"]) for rows in measured if (r := rows.get(name, {})).get("done")]


def _slope(points: list[tuple[int, float, int]], what: int) -> float:
    """d log(cost) / d log(passages) between the two largest sizes."""
    (few, *_), (many, *_) = points[-2:]
    return float(np.log(points[-1][what] / points[-2][what]) / np.log(many / few))


def _draw(lines: dict[str, list[tuple[int, float, int]]], picture: Path) -> None:
    """Seconds above and memory below, a column for each group of stages; dashes are linear growth."""
    with matplotlib.rc_context({"font.family": "sans-serif", "font.size": 8, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(11, 6.5), layout="constrained")
        rows = figure.subplots(2, len(_PANELS), sharex=True, sharey="row")
        for column, (title, verbs) in enumerate(_PANELS.items()):
            shown = {name: points for name, points in lines.items() if name.split()[0] in verbs and name not in _SMALL}
            for axes, what, label in zip(rows[:, column], (1, 2), ("seconds", "largest process, GiB"), strict=True):
                for number, (name, points) in enumerate(shown.items()):
                    costs = [p[what] / (2**30 if what == 2 else 1) for p in points]
                    axes.loglog([p[0] for p in points], costs, marker="o", markersize=3, linewidth=1.4, color=f"C{number}", label=name)
                axes.grid(True, which="major", linewidth=0.4, color="0.9")
                axes.yaxis.set_major_formatter("{x:g}")
                axes.set_ylabel(label if column == 0 else "")
            sizes = np.array([points[0] for points in next(iter(lines.values()))], float)
            rows[0, column].loglog(sizes, sizes / sizes[-1] * 300, linestyle="--", linewidth=0.8, color="0.6")
            rows[0, column].set_title(title)
            rows[0, column].legend(frameon=False, loc="upper left")
            rows[1, column].set_xlabel("passages")
        figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    main()
