"""What mteb gives to a search, read into artifacts: texts as mteb joins them, what cannot be read in one line, and nothing left behind."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inference_world import make_retriever

from raydense.data.store import PassageStore, full_text
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.evaluation.mteb_search import MtebSearch, _digest, _write_corpus, _write_queries

datasets = pytest.importorskip("datasets")
TASK = SimpleNamespace(name="Local")


def test_passages_and_queries_have_the_texts_that_mteb_gives_an_encoder(tmp_path):
    loaders = pytest.importorskip("mteb._create_dataloaders")
    from mteb.types import PromptType

    rows = [("a", "Stone", "Old bridges."), ("b", "", " alone "), ("c", "Only a title", "")]
    corpus = datasets.Dataset.from_list([dict(zip(("id", "title", "text"), row, strict=True)) for row in rows])
    store = PassageStore(_write_corpus(corpus, tmp_path / "corpus", "Local").place)
    assert full_text(store.slice(0, 3)).to_pylist() == loaders._retrieval_texts(corpus, PromptType.document)
    asked = datasets.Dataset.from_list(
        [{"id": f"q{i}", "text": f"what {i}?", "instruction": instruction} for i, instruction in enumerate(["briefly", None])]
    )
    made = read_table(_write_queries(asked, tmp_path / "queries", "Local").place, "queries")
    assert made["query_id"].to_pylist() == ["q0", "q1"]
    assert made["text"].to_pylist() == loaders._retrieval_texts(asked, PromptType.query)


def test_a_corpus_without_titles_and_rows_that_were_selected(tmp_path):
    whole = datasets.Dataset.from_dict({"id": [1, 2, 3], "text": ["x", "y", "z"]})
    store = PassageStore(_write_corpus(whole.select([2, 0]), tmp_path / "corpus", "Local").place)
    assert store.slice(0, 2).to_pydict() == {"passage_id": ["3", "1"], "title": ["", ""], "text": ["z", "x"]}


def test_another_corpus_of_that_name_is_refused(tmp_path):
    corpora = [datasets.Dataset.from_dict({"id": ["a"], "text": [text]}) for text in ("x", "y")]
    made = [_write_corpus(corpora[0], tmp_path / "corpus", "Local").fingerprint for _ in range(2)]
    assert made[0] == made[1]
    with pytest.raises(InputError, match="was made from something else"):
        _write_corpus(corpora[1], tmp_path / "corpus", "Local")


@given(st.lists(st.text(max_size=3), min_size=2, max_size=6), st.data())
@settings(max_examples=25, deadline=None)
def test_the_digest_is_of_rows_in_their_order_however_they_are_held(texts, data):
    ids = [f"d{i}" for i in range(len(texts))]
    held = datasets.Dataset.from_dict({"id": ids, "text": texts})
    at = data.draw(st.integers(1, len(texts) - 1))
    parts = datasets.concatenate_datasets([held.select(range(at)), held.select(range(at, len(texts)))])
    assert _digest(held, ["id", "text"]) == _digest(parts, ["id", "text"])
    changed = [*texts[:at], f"{texts[at]}!", *texts[at + 1 :]]
    assert _digest(held, ["id", "text"]) != _digest(datasets.Dataset.from_dict({"id": ids, "text": changed}), ["id", "text"])


def test_what_cannot_be_read_is_one_line(tmp_path):
    model = MtebSearch(make_retriever(tmp_path / "model"), tmp_path / "work")
    none = datasets.Dataset.from_dict({"id": ["a"], "image": ["x"]})
    with pytest.raises(InputError, match="has no column 'text'"):
        model.index(none, task_metadata=TASK, hf_split="test", hf_subset="default", encode_kwargs={}, num_proc=None)
    talk = datasets.Dataset.from_dict({"id": ["q"], "text": [["hello", "who?"]]})
    with pytest.raises(InputError, match="conversations are not read"):
        model.search(talk, task_metadata=TASK, top_k=10)
    with pytest.raises(InputError, match="gives candidates to re-rank"):
        model.search(none, task_metadata=TASK, top_k=10, top_ranked={"q": ["a"]})
    with pytest.raises(InputError, match="no such file or folder"):
        MtebSearch(tmp_path / "absent")
    with pytest.raises(InputError, match=r"index\.factry: unknown key; did you mean 'factory'"):
        MtebSearch(tmp_path / "model", index={"factry": "Flat"})


def test_without_a_folder_it_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    model = MtebSearch(make_retriever(tmp_path / "model"))
    first, second = (model._folder_of("Local", "default", split) for split in ("dev", "test"))
    assert second.parents[2].is_dir()
    assert not first.parents[2].exists()
    del model
    assert list((tmp_path / "temporary").iterdir()) == []


def test_results_are_kept_by_name_and_weights(tmp_path):
    pytest.importorskip("mteb")
    models = [MtebSearch(make_retriever(tmp_path / f"{seed}" / "model", seed)) for seed in (3, 3, 4)]
    metas = [model.mteb_model_meta for model in models]
    assert {meta.name for meta in metas} == {"raydense/model"}
    assert len({meta.revision for meta in metas}) == 2
