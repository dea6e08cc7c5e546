"""`Retriever` and `raydense search "question"`: hits, texts and places are those of pools, runs and `fuse`; no Ray is started for them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pyarrow as pa
import pytest
import torch
from embeddings import write_corpus, write_embeddings
from inference_world import WORDS, make_reranker, write_table

import raydense as rd
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.inference.query_encoder import query_encoder
from raydense.models.tiny import make_tiny_encoder
from raydense.retrieval.index import index
from raydense.retrieval.settings import IndexSettings
from raydense.serving.passage_scorer import PassageScorer
from raydense.storage import Artifact, fingerprint_of

pytestmark = pytest.mark.usefixtures("ray_cluster")

TEXTS = [" ".join(WORDS[(i * 7 + j * j) % len(WORDS)] for j in range(1 + i % 9)) for i in range(300)]
TITLES = [f"title {i}" if i % 2 else "" for i in range(300)]
ASKED = TEXTS[:40]


@dataclass(frozen=True)
class World:
    """A corpus with an index of words and one of vectors, and the runs of both."""

    root: Path
    words: Artifact
    dense: Artifact

    @property
    def both(self) -> dict[str, Any]:
        return {"index": [self.words, self.dense], "model": self.root / "model", "corpus": self.root / "corpus"}

    def run(self, name: str, k: int) -> dict[str, list[dict[str, Any]]]:
        """The hits of each query in the run of an index."""
        model = {} if name == "words" else {"model": self.root / "model"}
        made = rd.search(
            rd.SearchSettings(index=self.root / name, queries=self.root / "queries", k=k, output=self.root / f"{name}-{k}", **model)
        )
        return by_query(made)


def by_query(run: Artifact) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {text: [] for text in ASKED}
    for row in read_table(run.path, "run").to_pylist():
        found[ASKED[int(row["query_id"][1:])]].append(row)
    return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, ray_cluster: None) -> World:
    root = tmp_path_factory.mktemp("retriever")
    corpus = write_corpus(root / "corpus", TEXTS, TITLES)
    make_tiny_encoder(TEXTS, root / "model", seed=3)
    make_reranker(root / "reranker", root / "model")
    write_table(root / "queries", "queries", pa.table({"query_id": [f"q{i}" for i in range(len(ASKED))], "text": ASKED}))
    of = {"model": fingerprint_of(root / "model"), "corpus": corpus.fingerprint}
    write_embeddings(root / "vectors", query_encoder(str(root / "model"))(TEXTS), **of)
    words = index(IndexSettings(kind="bm25", corpus=str(root / "corpus"), shards=2, output=str(root / "words")))
    dense = index(IndexSettings(kind="faiss", embeddings=str(root / "vectors"), shards=2, output=str(root / "dense")))
    return World(root, words, dense)


def test_the_hits_of_an_index_are_those_of_its_run_with_titles_and_texts(world: World) -> None:
    wanted = world.run("dense", 7)
    with rd.Retriever.load(index=world.dense, model=world.root / "model", corpus=world.root / "corpus") as retriever:
        found = retriever.search(ASKED, k=7)
        alone = retriever.search(ASKED[3], k=7)
    assert [hits.question for hits in found] == ASKED
    for hits in found:
        assert [(hit.rank, hit.id) for hit in hits] == [(row["rank"], row["passage_id"]) for row in wanted[hits.question]]
        np.testing.assert_allclose([hit.score for hit in hits], [row["score"] for row in wanted[hits.question]], rtol=1e-5)
        for hit in hits:
            row = int(hit.id[1:])
            assert (hit.title, hit.text, hit.found, hit.reranked) == (TITLES[row], TEXTS[row], {"dense": hit.rank}, False)
    assert [hit.id for hit in alone] == [hit.id for hit in found[3]]


def test_another_prompt_than_the_models_is_what_questions_with_it_find(world: World) -> None:
    prefix = f"{WORDS[3]} {WORDS[6]} "
    where: dict[str, Any] = {"index": [world.words, world.dense], "model": world.root / "model"}
    with (
        rd.Retriever.load(**where, query_prefix=prefix) as retriever,
        rd.Retriever.load(index=world.dense, model=world.root / "model") as plain,
    ):
        for hits, of_dense in zip(retriever.search(ASKED, k=5), plain.search([prefix + text for text in ASKED], k=1_000), strict=True):
            found = {hit.id: hit.found["dense"] for hit in hits if "dense" in hit.found}
            assert found
            assert found == {hit.id: hit.rank for hit in of_dense if hit.id in found}
    with pytest.raises(InputError, match="has no prompt 'web'; there are query, document"):
        rd.Retriever.load(**where, prompt_name="web")


def test_several_indexes_are_fused_and_each_hit_names_where_it_was_found(world: World) -> None:
    runs = {name: world.run(name, 100) for name in ("words", "dense")}
    fused = rd.fuse(rd.FuseSettings(run=[world.root / "words-100", world.root / "dense-100"], k=8, output=world.root / "fused"))
    given = rd.fuse(
        rd.FuseSettings(
            run=[f"{name}={world.root / name}-100" for name in runs], method="sum", weights=[0.3, 0.7], k=8, output=world.root / "weighted"
        )
    )
    place = {name: {text: {row["passage_id"]: row["rank"] for row in rows} for text, rows in run.items()} for name, run in runs.items()}
    for made, more in ((fused, {}), (given, {"fuse": given})):
        wanted = by_query(made)
        with rd.Retriever.load(**world.both, **more) as retriever:
            found = retriever.search(ASKED, k=8)
        for hits in found:
            assert [hit.id for hit in hits] == [row["passage_id"] for row in wanted[hits.question]]
            np.testing.assert_allclose([hit.score for hit in hits], [row["score"] for row in wanted[hits.question]], rtol=1e-5)
            for hit in hits:
                assert hit.found == {name: place[name][hits.question][hit.id] for name in runs if hit.id in place[name][hits.question]}
    assert any(len(hit.found) == 2 for hits in found for hit in hits)


def test_a_running_pool_gives_the_same_hits(world: World) -> None:
    with rd.Retriever.load(**world.both) as retriever:
        wanted = retriever.search(ASKED, k=5)
    rest = {"model": world.root / "model", "corpus": world.root / "corpus"}
    with (
        rd.SearchPool.start(world.words, name="words"),
        rd.SearchPool.start(world.dense, name="dense"),
        rd.Retriever.load(pool=["words", "dense"], **rest) as retriever,
        ThreadPoolExecutor(3) as callers,
    ):
        for found in callers.map(lambda _: retriever.search(ASKED, k=5), range(3)):
            assert [[(hit.id, hit.found) for hit in hits] for hits in found] == [[(h.id, h.found) for h in hits] for hits in wanted]
    with pytest.raises(InputError, match="no search pool of the name 'words'"):
        rd.Retriever.load(pool="words", corpus=world.root / "corpus")


def test_a_reranker_orders_the_first_and_keeps_the_rest_below_them(world: World) -> None:
    with rd.Retriever.load(**world.both) as retriever:
        before = retriever.search(ASKED[:9], k=12)
    reranker = rd.CrossEncoder.load(world.root / "reranker")
    with rd.Retriever.load(**world.both, reranker=world.root / "reranker", rerank_depth=4) as retriever:
        after = retriever.search(ASKED[:9], k=12)
        first = retriever.search(ASKED[:9], k=2)
    for old, new, short in zip(before, after, first, strict=True):
        assert [hit.reranked for hit in new] == [True] * 4 + [False] * (len(new) - 4)
        assert [hit.id for hit in new[4:]] == [hit.id for hit in old[4:]]
        assert {hit.id: hit.found for hit in new} == {hit.id: hit.found for hit in old}
        assert all(one.score >= two.score for one, two in pairwise(new))
        assert [hit.id for hit in short] == [hit.id for hit in new[:2]]
        texts = [f"{hit.title} {hit.text}".strip() for hit in new[:4]]
        pairs = reranker.tokenize_pairs([new.question] * 4, texts).pad(reranker.tokenizer.pad_id)
        with torch.inference_mode():
            logits = reranker(pairs).numpy()
        np.testing.assert_allclose([hit.score for hit in new[:4]], logits, atol=2e-2)  # bf16 where the processor gains by it
        assert sorted(hit.id for hit in new[:4]) == sorted(hit.id for hit in old[:4])


def test_few_pairs_are_re_ranked_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many questions are asked together: the texts of their passages are in memory."""
    sizes: list[int] = []
    score = PassageScorer.__call__

    def counted(self: PassageScorer, questions: list[str], rows: Any) -> Any:
        sizes.append(rows.size)
        return score(self, questions, rows)

    monkeypatch.setattr(PassageScorer, "__call__", counted)
    monkeypatch.setattr("raydense.serving.retriever._PAIRS", 9)
    with rd.Retriever.load(**world.both, reranker=world.root / "reranker", rerank_depth=4) as retriever:
        found = retriever.search(ASKED[:5], k=2)
    assert sizes == [8, 8, 4]
    assert [hits.question for hits in found] == ASKED[:5]


def test_what_does_not_fit_is_one_line(world: World) -> None:
    root = world.root
    write_corpus(root / "other", TEXTS[::-1])
    make_tiny_encoder(TEXTS, root / "other-model", seed=9)
    with rd.Retriever.load(index=world.words) as retriever:
        assert retriever.search("fever", k=1)[0].text == ""
        for asked, k, words in (("  ", 1, "question 1: is empty"), (["fever", ""], 1, "question 2: is empty"), ("fever", 0, "k is 0")):
            with pytest.raises(InputError, match=words):
                retriever.search(asked, k)
        for wrong, k, words in (
            (["fever", None], 1, r"question 2: is no text \(None\)"),
            (b"fever", 1, "question 1: is no text"),
            ("a\ud800b", 1, "question 1: is no text"),
            ("fever", "3", "k is '3'"),
            ("fever", 2.5, "k is 2.5"),
        ):
            with pytest.raises(InputError, match=words):
                retriever.search(wrong, k)  # type: ignore[call-overload]
        for nothing in (None, 3):
            with pytest.raises(InputError, match=rf"questions: are no text \({nothing}\); give a str"):
                retriever.search(nothing)  # type: ignore[call-overload]
        assert retriever.search([]) == []
    with pytest.raises(InputError, match="is closed"):
        retriever.search("fever")
    for given, words in (
        ({}, "a search needs index, or pool"),
        ({"index": None, "pool": None}, "a search needs index, or pool"),
        ({"index": None, "pool": "p"}, "no search pool of the name 'p'"),
        ({"index": world.dense}, "model: missing"),
        ({"index": world.dense, "model": root / "other-model"}, "is not the model of this index"),
        ({"index": world.dense, "model": world.words}, "words: no config.json; give a model folder"),
        ({"index": world.words, "model": root / "model"}, "a BM25 index needs no model"),
        ({"index": world.words, "corpus": root / "other"}, "made of another corpus"),
        ({"index": world.words, "fuse": root / "x"}, "a search of one index does not use fuse"),
        ({"index": world.words, "reranker": root / "reranker"}, "a reranker needs corpus"),
        ({"index": world.words, "corpus": root / "corpus", "reranker": root / "model"}, "without a head that scores"),
        ({"index": world.words, "search_params": "nprobe=2"}, "BM25 has no search parameters"),
        ({"index": world.words, "pool": "p"}, "a search by pool does not use index"),
    ):
        with pytest.raises(InputError, match=words):
            rd.Retriever.load(**given)


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "raydense", "search", *map(str, words)]


def environment() -> dict[str, str]:
    """Of a user who runs no Ray: an address that is none would end a command that looks for one."""
    return {**os.environ, "RAY_ADDRESS": "127.0.0.1:1", "OMP_NUM_THREADS": "1"}


def test_a_question_on_the_command_line(world: World) -> None:
    """Without Ray; as a table and as JSON, and without a file written."""
    before = sorted(world.root.rglob("*"))
    words = command("a red fox", "--index", world.words.path, "--corpus", world.root / "corpus", "--k", 3)
    shown = forked.run(words, capture_output=True, text=True, env={**environment(), "COLUMNS": "70"}, check=True).stdout
    with rd.Retriever.load(index=world.words, corpus=world.root / "corpus") as retriever:
        wanted = retriever.search("a red fox", k=3)
    lines = shown.splitlines()
    assert len(lines) == 4
    assert all(len(line) <= 70 for line in lines)
    for line, hit in zip(lines[1:], wanted, strict=True):
        assert line.split()[:2] == [str(hit.rank), f"{hit.score:.4f}"]
        assert (hit.title or hit.id) in line
    done = forked.run([*words, "--json"], capture_output=True, text=True, env=environment(), check=True)
    found = json.loads(done.stdout)
    assert found["question"] == "a red fox"
    assert [hit["id"] for hit in found["hits"]] == [hit.id for hit in wanted]
    assert sorted(world.root.rglob("*")) == before


def test_questions_of_a_pipe_and_of_a_terminal(world: World) -> None:
    words = command("--index", world.words.path, "--k", 1, "--json")
    lines = "fever\n\nred fox\n"
    done = forked.run(words, input=lines, capture_output=True, text=True, env=environment(), check=True)
    assert [json.loads(line)["question"] for line in done.stdout.splitlines()] == ["fever", "red fox"]
    mixed = forked.run(words, input=b"fever\nfi\xe8vre\nred fox\n", capture_output=True, env={**environment(), "PYTHONIOENCODING": "utf-8"})
    assert mixed.returncode == 2
    assert [json.loads(line)["question"] for line in mixed.stdout.splitlines()] == ["fever", "red fox"], "what is no text is refused alone"
    assert b"Traceback" not in mixed.stderr
    table = forked.run(words[:-1], input=lines, capture_output=True, text=True, env=environment(), check=True).stdout
    assert [part.split("\n")[0] for part in table.rstrip().split("\n\n")] == ["fever", "red fox"]
    parent, child = pty.openpty()
    with subprocess.Popen(words[:-1], stdin=child, stdout=child, stderr=child, env={**environment(), "TERM": "dumb"}) as running:
        os.close(child)
        said = _read_until(parent, b"? ")
        os.write(parent, b"fever\n")
        said += _read_until(parent, b"? ")
        os.write(parent, b"\x04")
        said += _read_until(parent, b"")
        os.close(parent)
        assert running.wait() == 0
    assert b"rank" in said
    with rd.Retriever.load(index=world.words) as retriever:
        [hit] = retriever.search("fever", k=1)
    assert ["1", f"{hit.score:.4f}", hit.id] in [line.split() for line in said.decode().splitlines()]


def _read_until(terminal: int, words: bytes) -> bytes:
    """What a terminal shows until it shows `words`; until its program ends if there are none."""
    seen = b""
    with suppress(OSError):  # the other end is closed
        while not (words and words in seen) and (chunk := os.read(terminal, 4_096)):
            seen += chunk
    return seen
