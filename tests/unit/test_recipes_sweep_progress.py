"""The lines of a sweep's trials, from their logs."""

from pathlib import Path

from raydense.recipes.sweep import Sweep
from raydense.recipes.sweep_progress import SweepProgress

RECIPE = """
stages:
  data: {do: sample, passages: 200}
  words: {do: index, kind: bm25, corpus: $data/corpus}
  bm25: {do: search, index: $words, queries: $data/queries}
  report: {do: evaluate, run: $bm25, qrels: $data/qrels/test}
sweep:
  seed: [1, 2]
"""


def test_what_is_new_in_the_logs_of_running_trials(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    sweep = Sweep.read(tmp_path / "recipe.yaml", tmp_path / "out")
    assert sweep is not None
    first, second = sweep.trials
    running = {trial.name: trial for trial in (first, second)}
    progress = SweepProgress(running)
    assert progress.lines() == [], "no trial has a log yet"
    log = (first.recipe.output / "log").growing()
    log.write_text(f"{'x' * 9_000}\nencode: 100/5,183 passages (2%), 5.0/s\nencode: 2")
    assert progress.lines() == [f"{first.name}: encode: 100/5,183 passages (2%), 5.0/s"]
    assert progress.lines() == [], "it is printed once"
    with open(log, "a") as file:
        file.write("00/5,183 passages (4%)\n")
    (second.recipe.output / "log").growing().write_text("[1/4] data: sample\n")
    assert progress.lines() == [f"{first.name}: encode: 200/5,183 passages (4%)"], "the listener says which stages are done"
    running.clear()
    assert progress.lines() == []
