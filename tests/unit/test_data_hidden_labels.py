"""Hidden labels: which training queries lose theirs, what becomes of these, and the recipe that labels them by a teacher."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydense.data.hidden_labels import hide_labels
from raydense.data.importing import import_dataset
from raydense.data.settings import HiddenSettings, ImportSettings
from raydense.data.source_size import parts_held
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.recipes.content import recipe_file
from raydense.recipes.recipe import Recipe
from raydense.storage import read_manifest


def judged(count: int, each: int = 2) -> pa.Table:
    rows = [(f"q{n}", f"d{n}-{m}", 1) for n in range(count) for m in range(each)]
    return pa.table(dict(zip(("query_id", "passage_id", "relevance"), map(list, zip(*rows, strict=True)), strict=True)))


def ids(table: pa.Table) -> set[str]:
    return set(table["query_id"].to_pylist())


@given(count=st.integers(4, 50), each=st.integers(1, 3), share=st.floats(0.2, 0.8), seed=st.integers(0, 9))
def test_a_query_keeps_all_its_labels_or_none(count: int, each: int, share: float, seed: int) -> None:
    whole = {"train": judged(count, each), "dev": judged(3)}
    made = hide_labels(whole, None, HiddenSettings(share=share, seed=seed))
    assert set(made) == {"train", "hidden", "dev"}
    assert made["dev"] is whole["dev"]
    assert not ids(made["train"]) & ids(made["hidden"])
    assert len(ids(made["hidden"])) == round(share * count)
    rows = [row for part in ("train", "hidden") for row in made[part].to_pylist()]
    assert sorted(map(str, rows)) == sorted(map(str, whole["train"].to_pylist()))
    assert hide_labels(whole, None, HiddenSettings(share=share, seed=seed)) == made


def test_the_seed_decides_which() -> None:
    halves = [ids(hide_labels({"train": judged(40)}, None, HiddenSettings(seed=seed))["hidden"]) for seed in range(3)]
    assert len({frozenset(half) for half in halves}) == 3


def test_queries_of_one_text_stay_together() -> None:
    queries = pa.table({"query_id": [f"q{n}" for n in range(40)], "text": [f"Question {n % 10}" for n in range(40)]})
    made = hide_labels({"train": judged(40)}, queries, HiddenSettings())
    texts = {part: {int(name[1:]) % 10 for name in ids(made[part])} for part in ("train", "hidden")}
    assert len(texts["hidden"]) == 5
    assert not texts["train"] & texts["hidden"]


@pytest.mark.parametrize(
    ("splits", "share", "message"),
    [
        ({"dev": judged(9)}, 0.5, "there are no judgements called train"),
        ({"train": judged(9), "hidden": judged(9)}, 0.5, "there are judgements called hidden"),
        ({"train": judged(3)}, 0.1, "share 0.1 of the 3 queries of train leaves none hidden"),
        ({"train": judged(3)}, 0.9, "share 0.9 of the 3 queries of train leaves none judged"),
    ],
)
def test_what_cannot_be_hidden_is_refused(splits: dict[str, pa.Table], share: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        hide_labels(splits, None, HiddenSettings(share=share))


@pytest.mark.parametrize("fill", [False, True])
def test_an_import_hides_them_and_a_plan_foresees_it(fill: bool, tmp_path: Path) -> None:
    source = tmp_path / "in"
    (source / "qrels").mkdir(parents=True)
    for name, key in (("corpus", "d"), ("queries", "q")):
        (source / f"{name}.jsonl").write_text("".join(json.dumps({"_id": f"{key}{n}", "text": f"{name} {n}"}) + "\n" for n in range(100)))
    (source / "qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\td{n}\t1\n" for n in range(100)))
    settings = ImportSettings.read(
        {"format": "beir", "input": str(source), "output": str(tmp_path / "out"), "fill_splits": fill, "hidden": {"share": 0.4, "seed": 3}}
    )
    foreseen, _ = parts_held(settings)
    made = import_dataset(settings).path
    rows = {name: len(read_table(made / f"qrels/{name}", "qrels")) for name in ("train", "hidden")}
    assert rows == ({"train": 42, "hidden": 28} if fill else {"train": 60, "hidden": 40})
    assert {name: foreseen[f"qrels/{name}"].rows for name in rows} == pytest.approx(rows, abs=1)
    manifest = read_manifest(str(made))
    assert manifest is not None
    assert "qrels/hidden" in manifest["summary"]["parts"]


def test_the_teacher_labels_the_hidden_half_without_its_labels(tmp_path: Path) -> None:
    stages = {stage.name: stage.settings.model_dump() for stage in Recipe.read(recipe_file("pair-medquad-half"), tmp_path).stages}
    hidden = str(tmp_path / "data/qrels/hidden")
    assert [name for name, given_ in stages.items() if given_.get("qrels") == hidden] == ["found-unlabelled"]
    assert stages["pseudo"]["qrels"] is None
    assert stages["pseudo"]["run"] == str(tmp_path / "found-unlabelled")
    labelled = [name for name, given_ in stages.items() if given_.get("qrels") == str(tmp_path / "data/qrels/train")]
    assert {"negatives-1", "negatives-2", "gold-and-pseudo"} <= set(labelled)
