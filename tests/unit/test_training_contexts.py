"""Contexts of pre-training: which passages have one, and the laws by which it is drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from raydense.data.generated import Generated, commit_queries
from raydense.data.store import CorpusWriter, PassageStore
from raydense.errors import InputError
from raydense.storage import Draft
from raydense.training.contexts import Contexts
from raydense.training.settings import PretrainSettings

# Documents of four, one, two and three passages, not all together; a file holds four.
DOCUMENTS = ["a", "b", "a", "c", "d", "a", "d", "c", "d", "a"]
QUERIES = [["q0"], [], ["q2 one", "q2 two"], [], ["q4"], [], ["q6 one", "q6 two", "q6 three"], [], [], ["q9"]]


def make_corpus(folder: Path, documents: bool = True) -> PassageStore:
    writer = CorpusWriter(Draft.open(folder, "corpus", {"test": str(folder)}), 4)
    rows = {"passage_id": [f"p{i}" for i in range(10)], "title": [""] * 10, "text": [f"text {i}" for i in range(10)]}
    writer.add(pa.table({**rows, "doc_id": DOCUMENTS} if documents else rows))
    writer.finish()
    return PassageStore(folder)


def make_generated(folder: Path, corpus: str) -> None:
    draft = Draft.open(folder, "generated", {"test": "generated"})
    for number, start in enumerate((0, 4, 8)):
        commit_queries(draft, f"generated-{number:05d}.arrow", start, QUERIES[start : start + 4])
    draft.finish(len(QUERIES), corpus=corpus)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("contexts")
    make_generated(made / "generated", make_corpus(made / "corpus").fingerprint)
    return made


def contexts(root: Path, kind: str | None, corpus: str = "corpus") -> Contexts:
    return Contexts(PassageStore(root / corpus), kind, str(root / "generated") if kind in ("query", "mixed") else None)


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        (None, list(range(10))),
        ("passage", [0, 2, 3, 4, 5, 6, 7, 8, 9]),
        ("query", [0, 2, 4, 6, 9]),
        ("mixed", [0, 2, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_passages_with_a_context_are_the_examples(
    root: Path, capsys: pytest.CaptureFixture[str], kind: str | None, rows: list[int]
) -> None:
    examples = contexts(root, kind).examples(log=True)
    assert examples.query.tolist() == rows
    assert examples.positives.take(np.array([len(rows) - 1])).values.tolist() == rows[-1:]
    printed = capsys.readouterr().err
    assert (f"{10 - len(rows)} of 10 passages have no context" in printed) == (len(rows) < 10)


def drawn(found: Contexts, row: int, count: int = 4_000) -> dict[str, float]:
    """The share of each context drawn for a passage."""
    numbers = np.random.default_rng(row).random((count, 2))
    texts, counts = np.unique(found.draw(np.full(count, row), numbers), return_counts=True)
    return dict(zip(texts.tolist(), (counts / count).tolist(), strict=True))


def test_another_passage_of_the_document_each_as_often(root: Path) -> None:
    found = contexts(root, "passage")
    assert drawn(found, 0) == pytest.approx({"text 2": 1 / 3, "text 5": 1 / 3, "text 9": 1 / 3}, abs=0.04)
    assert drawn(found, 6) == pytest.approx({"text 4": 1 / 2, "text 8": 1 / 2}, abs=0.04)
    assert drawn(found, 3) == {"text 7": 1.0}


def test_one_of_the_queries_each_as_often(root: Path) -> None:
    found = contexts(root, "query")
    assert drawn(found, 6) == pytest.approx({"q6 one": 1 / 3, "q6 two": 1 / 3, "q6 three": 1 / 3}, abs=0.04)
    assert drawn(found, 9) == {"q9": 1.0}


def test_mixed_is_either_or_what_there_is(root: Path) -> None:
    found = contexts(root, "mixed")
    assert drawn(found, 2) == pytest.approx({"q2 one": 1 / 4, "q2 two": 1 / 4, "text 0": 1 / 6, "text 5": 1 / 6, "text 9": 1 / 6}, abs=0.04)
    assert drawn(found, 7) == {"text 3": 1.0}


def test_many_passages_at_once_in_their_order(root: Path) -> None:
    rows = np.array([9, 0, 6, 4, 2, 9])
    numbers = np.array([[0, 0.0], [0, 0.99], [0, 0.5], [0, 0.1], [0, 0.6], [0, 0.5]])
    assert contexts(root, "query").draw(rows, numbers) == ["q9", "q0", "q6 two", "q4", "q2 two", "q9"]


def test_lists_by_row_over_files(root: Path) -> None:
    generated = Generated(root / "generated")
    assert len(generated) == 10
    assert generated.counts().tolist() == [len(queries) for queries in QUERIES]
    for start, stop in ((0, 10), (3, 5), (4, 8), (9, 10), (2, 2)):
        assert generated.slice(start, stop).to_pylist() == QUERIES[start:stop]


def test_lists_of_one_file_are_not_copied(root: Path) -> None:
    """`filter` takes them for each block of the file's queries."""
    generated = Generated(root / "generated")
    generated.counts()  # opens the files
    before = pa.total_allocated_bytes()
    lists = [generated.slice(start, stop) for start, stop in generated.ranges.values() for _ in range(3)]
    assert pa.total_allocated_bytes() <= before
    assert [len(one) for one in lists[::3]] == [stop - start for start, stop in generated.ranges.values()]


def test_what_cannot_give_contexts_is_refused(root: Path, tmp_path: Path) -> None:
    make_corpus(tmp_path / "corpus", documents=False)
    with pytest.raises(InputError, match="has no doc_id; context passage needs to know documents"):
        contexts(tmp_path, "passage")
    make_generated(tmp_path / "generated", "another")
    with pytest.raises(InputError, match="generated: was generated for another corpus"):
        contexts(tmp_path, "query")


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"method": "cocondenser"}, "context: missing"),
        ({"method": "cotmae", "context": "query"}, "context query needs generated"),
        ({"method": "mlm", "context": "passage"}, "method mlm does not use context"),
        ({"method": "cotmae", "context": "passage", "generated": "g"}, "context passage does not use generated"),
        ({"method": "cotmae", "context": "passage", "skip_from": 1}, "method cotmae does not use skip_from"),
        ({"method": "condenser", "temperature": 0.5}, "method condenser does not use temperature"),
        ({"method": "mlm", "batch_size": 9, "workers": 2}, "batch_size 9 must divide"),
    ],
)
def test_bad_settings_are_refused(given: dict[str, object], fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        PretrainSettings.read({"model": "tiny", "corpus": "c", "output": "o", **given})


def test_masks_by_default() -> None:
    def shares(**given: object) -> tuple[float | None, float | None]:
        made = PretrainSettings.read({"model": "tiny", "corpus": "c", "output": "o", **given})
        return made.mask, getattr(made, "context_mask", None)

    assert shares(method="mlm") == (0.15, None)
    assert shares(method="cocondenser", context="passage") == (0.15, 0.15)
    assert shares(method="cotmae", context="passage") == (0.3, 0.45)
    assert shares(method="cotmae", context="passage", mask=0.4) == (0.4, 0.45)
