"""What a model measures on many test sets, in one table: one row per set, the mean of sets that belong together, the mean of all.

BEIR's mean counts CQADupStack, twelve sets in one sub-folder, once. So sets `GROUP/NAME` count together as one, by their mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any

from raydense.evaluation.table import aligned, figure, metrics_in, piped

Row = dict[str, Any]


def summarise(measured: Sequence[Row], asked: Sequence[tuple[str, str]], splits: Sequence[str] = ()) -> dict[str, Any]:
    """{"runs": {run: {"sets", "groups", "means"}}, "missing"}: what was `measured` of the sets and splits that were `asked`, in their order.

    A measured row has `set`, `split`, `queries`, `passages`, `report` and `runs`, the metrics of each run. A group's row has the
    mean over its sets, that of "means", one for each of `splits`, the mean over sets and groups; `count` says over how many, `of` of
    how many that were asked. Of `test/dev` are the sets that were asked for either. A group that lacks a set is not counted in the
    mean of all.
    """
    there = {(row["set"], row["split"]): row for row in measured}
    runs: dict[str, dict[str, list[Row]]] = {}
    for run in dict.fromkeys(run for row in measured for run in row["runs"]):
        rows = {key: {**there[key], "metrics": there[key]["runs"][run]} for key in asked if key in there}
        rows = {key: {name: value for name, value in row.items() if name != "runs"} for key, row in rows.items()}
        groups, means = [], []
        for split in dict.fromkeys(splits or (split for _, split in asked)):
            keys = [key for key in asked if key[1] in split.split("/")]
            if not keys:
                continue
            units = [_mean(unit, split, list(of), rows) for unit, of in groupby(keys, _unit)]
            groups += [unit for unit in units if unit["of"] > 1 and unit["count"]]
            whole = [unit["metrics"] for unit in units if unit["count"] == unit["of"]]
            means.append({"split": split, "count": len(whole), "of": len(units), "metrics": _means(whole)})
        runs[run] = {"sets": list(rows.values()), "groups": groups, "means": means}
    return {"runs": runs, "missing": [{"set": name, "split": split} for name, split in asked if (name, split) not in there]}


def _unit(key: tuple[str, str]) -> str:
    return key[0].partition("/")[0]


def _mean(unit: str, split: str, keys: list[tuple[str, str]], rows: dict[tuple[str, str], Row]) -> Row:
    found = [rows[key]["metrics"] for key in keys if key in rows]
    return {"group": unit, "split": split, "count": len(found), "of": len(keys), "metrics": _means(found)}


def _means(of: list[dict[str, float]]) -> dict[str, float]:
    shared = [metric for metric in of[0] if all(metric in each for each in of)] if of else []
    return {metric: fmean(each[metric] for each in of) for metric in shared}


def text_table(summary: dict[str, Any]) -> str:
    """The summary for a terminal: for each run, one line per set."""
    return _page(summary, "{lines}", aligned)


def markdown_table(summary: dict[str, Any]) -> str:
    """The same as a Markdown page."""
    return _page(summary, "## {run}\n\n{lines}", piped) + "\n"


def _page(summary: dict[str, Any], block: str, drawn: Callable[[list[list[str]]], str]) -> str:
    blocks = [block.format(run=run, lines=drawn(_lines(run, of))) for run, of in summary["runs"].items()]
    if missing := ", ".join(dict.fromkeys(each["set"] for each in summary["missing"])):
        blocks.append(f"Incomplete: {missing} could not be measured; means are over the measured sets.")
    return "\n\n".join(blocks)


def _lines(run: str, of: dict[str, list[Row]]) -> list[list[str]]:
    """The cells of a run's table, its head first; the splits have a column where there are several."""
    metrics = metrics_in(of["sets"])
    lines = [[run, "split", "queries", "passages", *metrics]]
    for mean in of["means"]:
        split = mean["split"]
        rows = [row for row in of["sets"] if row["split"] in split.split("/")]
        groups = {row["group"]: row for row in of["groups"] if row["split"] == split}
        for unit, members in groupby(rows, lambda row: _unit((row["set"], ""))):
            lines += [_line(row["set"], row["split"], row, metrics, f"{row['queries']:,}", f"{row['passages']:,}") for row in members]
            if unit in groups:
                lines.append(_line(f"{unit}: {_over(groups[unit])}", split, groups[unit], metrics))
        if mean["of"] > 1 and mean["count"]:
            lines.append(_line(_over(mean), split, mean, metrics))
    several = len(of["means"]) > 1 or len({row["split"] for row in of["sets"]}) > 1
    return [line if several else [line[0], *line[2:]] for line in lines]


def _line(name: str, split: str, row: Row, metrics: list[str], queries: str = "", passages: str = "") -> list[str]:
    return [name, split, queries, passages, *(figure(row["metrics"].get(metric)) for metric in metrics)]


def _over(row: Row) -> str:
    return f"mean of {row['of']}" if row["count"] == row["of"] else f"mean of {row['count']} of {row['of']}"
