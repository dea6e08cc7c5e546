"""The whole of `filter`: what it keeps is what `search` finds, over BM25 and vectors, however the index is cut."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import raydense.inference.query_encoder
from raydense.data.generated import Generated, commit_queries
from raydense.data.sample import sample
from raydense.data.settings import SampleSettings
from raydense.data.store import CorpusWriter, PassageStore
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.inference import pipeline
from raydense.inference.query_encoder import query_encoder
from raydense.mining.consistency import filter
from raydense.mining.settings import FilterSettings
from raydense.models.tiny import make_tiny_encoder
from raydense.retrieval.index import index
from raydense.retrieval.pool import SearchPool
from raydense.retrieval.search import search
from raydense.retrieval.settings import IndexSettings, SearchSettings
from raydense.storage import Artifact, Draft, fingerprint_of
from raydense.training.contexts import Contexts
from tests.embeddings import write_corpus, write_embeddings
from tests.inference_world import file_bytes, write_table

pytestmark = pytest.mark.usefixtures("ray_cluster")

Lists = list[list[str]]


def write_generated(folder: Path, lists: Lists, corpus: str, cuts: list[int]) -> None:
    draft = Draft.open(folder, "generated", {"stage": "test", "cuts": cuts})
    for number, (start, stop) in enumerate(zip([0, *cuts], [*cuts, len(lists)], strict=True)):
        commit_queries(draft, f"generated-{number:05d}.arrow", start, lists[start:stop])
    draft.finish(len(lists), corpus=corpus, model="the generator")


def some_queries(texts: list[str], rng: np.random.Generator) -> Lists:
    """Of each passage its own text, another's, three words of its own, and one that no passage has; of some only others', or none."""
    other = rng.permutation(len(texts))
    words = [" ".join(rng.choice(text.split(), 3)) for text in texts]
    lists = [[text, texts[other[i]], words[i], "xyzzy"] for i, text in enumerate(texts)]
    return [[] if i % 5 == 4 else line[1::2] if i % 5 == 3 else line for i, line in enumerate(lists)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sample's passages with some of them twice, their queries, BM25 and vectors in one shard and in two."""
    root = tmp_path_factory.mktemp("filter")
    made = PassageStore(f"{sample(SampleSettings(output=str(root / 'sample'), passages=300, train_queries=10)).path}/corpus")
    table = made.take(np.arange(300), ["passage_id", "title", "text"])
    again = table.slice(20, 5).set_column(0, "passage_id", pa.array([f"again-{i}" for i in range(5)]))
    writer = CorpusWriter(Draft.open(root / "corpus", "corpus", {"test": "corpus"}), 120)
    writer.add(pa.concat_tables([table, again]))
    store = PassageStore(writer.finish().path)
    texts = store.passages(np.arange(len(store)))
    write_generated(root / "generated", some_queries(texts, np.random.default_rng(1)), store.fingerprint, [120, 240])
    make_tiny_encoder(texts, root / "model", seed=3)
    vectors = query_encoder(str(root / "model"))(texts)
    write_embeddings(root / "embeddings", vectors, model=fingerprint_of(root / "model"), corpus=store.fingerprint)
    for shards in (1, 2):
        index(IndexSettings(kind="bm25", corpus=str(root / "corpus"), shards=shards, output=str(root / f"bm25-{shards}")))
        index(IndexSettings(kind="faiss", embeddings=str(root / "embeddings"), shards=shards, output=str(root / f"dense-{shards}")))
    return root


def settings(world: Path, output: Path, kind: str, **more: object) -> FilterSettings:
    inputs = {"generated": str(world / "generated"), "corpus": str(world / "corpus"), "index": str(world / f"{kind}-1")}
    model = {"model": str(world / "model")} if kind == "dense" else {}
    return FilterSettings.read({"output": str(output), **inputs, **model, **more})


@pytest.fixture(scope="module")
def made(world: Path) -> Artifact:
    """What BM25 in one shard keeps at k 2."""
    return filter(settings(world, world / "kept", "bm25", k=2))


@pytest.fixture
def pipelines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stages that start a pool of model actors, from here on."""
    started: list[str] = []
    run = pipeline.run
    monkeypatch.setattr(
        raydense.inference.query_encoder, "run", lambda stage, *args, **more: started.append(stage) or run(stage, *args, **more)
    )
    return started


def test_a_running_pool_answers_as_one_that_is_started(world: Path, made: Artifact, tmp_path: Path) -> None:
    asked = settings(world, tmp_path / "kept", "bm25", k=2, pool="filters")
    with pytest.raises(InputError, match="no search pool of the name 'filters'"):
        filter(asked)
    with SearchPool.start(Artifact.open(world / "bm25-1"), name="filters"):
        with pytest.raises(InputError, match=r"answers from another index, .*bm25-1; give that one"):
            filter(settings(world, tmp_path / "other", "bm25", k=2, pool="filters", index=str(world / "bm25-2")))
        kept = filter(asked)
    assert kept.fingerprint == made.fingerprint
    assert filter(asked).path == kept.path, "a finished output no longer needs the pool"


def lists_of(folder: Path) -> Lists:
    generated = Generated(folder)
    return generated.slice(0, len(generated)).to_pylist()


def searched(world: Path, output: Path, kind: str, k: int) -> list[list[int]]:
    """The rows that `search` finds with each query of all lists, best first."""
    texts = [query for queries in lists_of(world / "generated") for query in queries]
    numbers = [str(number) for number in range(len(texts))]
    write_table(output / "queries", "queries", pa.table({"query_id": numbers, "text": texts}))
    model = {"model": str(world / "model")} if kind == "dense" else {}
    inputs = {"index": str(world / f"{kind}-1"), "queries": str(output / "queries"), **model}
    run = read_table(search(SearchSettings.read({"output": str(output / "run"), "k": k, **inputs})), "run")
    ids = pa.ipc.open_file(pa.memory_map(str(world / f"{kind}-1" / "passage_ids.arrow"))).read_all()["passage_id"]
    rows = pc.index_in(run["passage_id"], value_set=ids.combine_chunks()).to_pylist()
    found: list[list[int]] = [[] for _ in texts]
    for query, row in zip(run["query_id"].to_pylist(), rows, strict=True):
        found[int(query)].append(row)
    return found


@pytest.mark.parametrize(("kind", "k"), [("bm25", 3), ("dense", 12)])
def test_kept_is_what_search_finds(world: Path, tmp_path: Path, kind: str, k: int, capfd: pytest.CaptureFixture[str]) -> None:
    read, text = lists_of(world / "generated"), PassageStore(world / "corpus").take(np.arange(305), ["text"])["text"].to_pylist()
    write_generated(tmp_path / "generated", read, fingerprint_of(world / "corpus"), [])  # one block, as in the search: the same rounding
    made = filter(settings(world, tmp_path / "kept", kind, k=k, generated=str(tmp_path / "generated")))
    found = iter(searched(world, tmp_path, kind, k))
    ranks = [
        [next((r for r, hit in enumerate(next(found), 1) if text[hit] == text[row]), 0) for _ in line] for row, line in enumerate(read)
    ]
    kept = [[q for q, rank in zip(line, lists, strict=True) if rank] for line, lists in zip(read, ranks, strict=True)]
    assert lists_of(made.path) == kept
    flat = [rank for line in ranks for rank in line]
    assert made.summary["ranks"] == {
        name: sum(rank in span for rank in flat)
        for name, span in {**{str(r): [r] for r in range(1, min(k, 10) + 1)}, **({"11 to 12": [11, 12]} if k == 12 else {})}.items()
    }
    counts = {"read": len(flat), "queries": sum(map(len, kept)), "without": sum(not line for line in kept), "without_before": 61, "k": k}
    assert made.summary.items() >= counts.items()
    assert (made.rows, made.summary["model"], made.summary["corpus"]) == (305, "the generator", fingerprint_of(world / "corpus"))
    assert f"filter: {counts['queries']} of {counts['read']} queries kept" in capfd.readouterr().err
    assert 0 < counts["queries"] < counts["read"]
    if kind == "bm25":
        whole = [line for line in ranks if len(line) == 4]
        assert sum(line[0] > 0 for line in whole) > 0.9 * len(whole), "the own text finds the passage"
        assert sum(line[1] > 0 for line in whole) < 0.1 * len(whole), "another's does not"
        assert [ranks[row][0] for row in (300, 301, 302)] == [1, 1, 1], "found by the twin in the lower row"


def test_another_prompt_than_the_models_keeps_what_queries_with_it_find(world: Path, tmp_path: Path) -> None:
    prefix = "xyzzy "
    lists = [[prefix + query for query in line] for line in lists_of(world / "generated")]
    write_generated(tmp_path / "with", lists, fingerprint_of(world / "corpus"), [120, 240])
    wanted = filter(settings(world, tmp_path / "wanted", "dense", k=3, generated=str(tmp_path / "with")))
    made = filter(settings(world, tmp_path / "made", "dense", k=3, query_prefix=prefix))
    assert [[prefix + query for query in line] for line in lists_of(made.path)] == lists_of(wanted.path)
    assert lists_of(made.path) != lists_of(filter(settings(world, tmp_path / "without", "dense", k=3)).path)
    with pytest.raises(InputError, match="has no prompt 'web'; there are query, document"):
        filter(settings(world, tmp_path / "none", "dense", prompt_name="web"))


def test_the_same_however_the_index_is_cut_and_spread(world: Path, tmp_path: Path, made: Artifact, pipelines: list[str]) -> None:
    words = filter(settings(world, tmp_path / "words", "bm25", k=2, index=str(world / "bm25-2"), shard_replicas=2))
    assert file_bytes(words.path) == file_bytes(made.path)
    assert file_bytes(made.path).keys() == {"report.md", *(f"generated-{i:05d}.arrow" for i in range(3))}
    one = filter(settings(world, tmp_path / "one", "dense", k=5))
    assert pipelines == ["filter"], "one pool of model actors for all files"
    two = filter(settings(world, tmp_path / "two", "dense", k=5, index=str(world / "dense-2"), threads=1))
    assert file_bytes(one.path) == file_bytes(two.path)
    lists = lists_of(world / "generated")
    write_generated(tmp_path / "alone", [[]] * 120 + lists[120:240] + [[]] * 65, fingerprint_of(world / "corpus"), [120, 240])
    alone = filter(settings(world, tmp_path / "second", "dense", k=5, generated=str(tmp_path / "alone")))
    file = "generated-00001.arrow"
    assert (alone.path / file).read_bytes() == (one.path / file).read_bytes(), "no file depends on the others"


def test_the_same_however_the_input_is_cut(world: Path, tmp_path: Path, made: Artifact) -> None:
    write_generated(tmp_path / "generated", lists_of(world / "generated"), fingerprint_of(world / "corpus"), [])
    whole = filter(settings(world, tmp_path / "whole", "bm25", k=2, generated=str(tmp_path / "generated")))
    assert lists_of(whole.path) == lists_of(made.path)
    assert (whole.path / "report.md").read_text() == (made.path / "report.md").read_text()


def test_the_report_can_be_read(world: Path, made: Artifact) -> None:
    page, summary = (made.path / "report.md").read_text(), made.summary
    lines = page.splitlines()
    assert f"| queries read | {summary['read']} |" in lines
    assert f"| passages without a query now | {summary['without']} |" in lines
    longest = max(summary["read"] - summary["queries"], *summary["ranks"].values())
    assert [line.split(" | ")[1] for line in lines if line.endswith(f"| {'█' * 40} |")] == [str(longest)]
    assert [page.count(f"\n### {what}: ") for what in ("Kept", "Dropped")] == [15, 15]
    store = PassageStore(world / "corpus")
    kept = dict(zip(store.ids(np.arange(305)).to_pylist(), lists_of(made.path), strict=True))
    for part in re.split(r"\n### ", page)[1:]:
        head, own = part.splitlines()[0], re.search(r"- its passage, (in place \d|not found), (\S+): ", part)
        assert own
        shown = [" ".join(query.split())[:200] for query in kept[own[2]]]
        assert (head.split(": ", 1)[1][:200] in shown) == head.startswith("Kept") == own[1].startswith("in place")


def test_what_takes_generated_queries_takes_those_kept(world: Path, tmp_path: Path, made: Artifact) -> None:
    """A passage that has lost all its queries has none for pre-training, and only its own words for BM25; a second filter continues."""
    kept = lists_of(made.path)
    assert made.summary["without"] > made.summary["without_before"]
    contexts = Contexts(PassageStore(world / "corpus"), "query", str(made.path))
    rows = contexts.examples().query
    assert rows.tolist() == [row for row, line in enumerate(kept) if line]
    drawn = contexts.draw(rows, np.random.default_rng(0).random((len(rows), 2)))
    assert all(query in kept[row] for row, query in zip(rows.tolist(), drawn, strict=True))
    expanded = IndexSettings(kind="bm25", corpus=str(world / "corpus"), generated=str(made.path), output=str(tmp_path / "expanded"))
    assert index(expanded).rows == 305
    again = filter(settings(world, tmp_path / "again", "dense", generated=str(made.path), k=12))
    assert again.summary["read"] == made.summary["queries"]
    assert all(set(fewer) <= set(line) for fewer, line in zip(lists_of(again.path), kept, strict=True))


def test_what_does_not_belong_together_is_refused(world: Path, tmp_path: Path, made: Artifact) -> None:
    write_corpus(tmp_path / "corpus", ["another", "corpus"])
    index(IndexSettings(kind="bm25", corpus=str(tmp_path / "corpus"), output=str(tmp_path / "index")))
    expand = {"corpus": str(world / "corpus"), "generated": str(world / "generated")}
    index(IndexSettings(kind="bm25", output=str(tmp_path / "expanded"), **expand))
    make_tiny_encoder(["other words"] * 3, tmp_path / "model", seed=4)
    corpus = fingerprint_of(world / "corpus")
    write_generated(tmp_path / "empty", [[]] * 305, corpus, [])
    write_generated(tmp_path / "lost", [["xyzzy"]] * 305, corpus, [])
    bad: list[tuple[str, dict[str, object], str]] = [
        ("bm25", {"corpus": str(tmp_path / "corpus")}, r"generated: was generated for another corpus"),
        ("bm25", {"index": str(tmp_path / "index")}, r"index: was made with another corpus"),
        ("bm25", {"index": str(tmp_path / "expanded")}, r"expanded: was expanded with these same queries"),
        ("bm25", {"index": str(tmp_path / "expanded"), "generated": str(made.path)}, r"expanded: was expanded with these same queries"),
        ("bm25", {"model": str(world / "model")}, "a BM25 index needs no model"),
        ("dense", {"model": None}, "give the retriever"),
        ("dense", {"model": str(tmp_path / "model")}, "is not the model of this index"),
        ("dense", {"search_params": "nprobe=2"}, "does not take 'nprobe=2'"),
        ("bm25", {"generated": str(tmp_path / "empty")}, "empty: has no queries"),
        ("bm25", {"generated": str(tmp_path / "lost")}, "lost: no query is left"),
    ]
    for number, (kind, wrong, message) in enumerate(bad):
        with pytest.raises(InputError, match=message):
            filter(settings(world, tmp_path / f"o{number}", kind, **wrong))
    assert not (tmp_path / f"o{number}").exists(), "a greater k can have the same output"
    with pytest.raises(InputError, match=r"settings\.k: 2 -> 3"):
        filter(settings(world, made.path, "bm25", k=3))
    assert filter(settings(world, made.path, "bm25", k=2, shard_replicas=2)).fingerprint == made.fingerprint
