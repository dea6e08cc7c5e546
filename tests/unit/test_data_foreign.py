"""A file of another tool where an artifact is wanted is refused with the command that imports it, which works as it stands."""

import re
import shlex
from pathlib import Path

import pytest

from raydense.cli import main
from raydense.errors import InputError
from raydense.storage import Artifact

FILES = [
    ("bm25.trec", "q1 Q0 d1 1 2.5 tag", "run"),
    ("dev.qrels", "q1 0 d1 1", "qrels"),
    ("qrels.dev.small.tsv", "1\t0\t7\t1", "qrels"),
    ("test.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t1", "qrels"),
    ("asked.jsonl", '{"_id": "q1", "text": "which?"}', "queries"),
    ("in/corpus.jsonl", '{"_id": "d1", "text": "a bird"}', "corpus"),
    ("run.bm25.tsv", "1\t7\t1", "run"),
    ("anything.txt", "1\t7\t1\n1\t8\t2", "run"),
    ("queries.dev.tsv", "1\twhich bird is it?", "queries"),
    ("asked.tsv", "1\twhich bird is it?", "queries"),
    ("collection.tsv", "7\ta bird", "corpus"),
    ("psgs_w100.tsv", 'id\ttext\ttitle\n7\t"a bird"\tKiwi', "corpus"),
    ("nq-test.csv", "which bird?\t['kiwi']", "queries"),
    ("nq.json", '[{"question": "which?", "answers": [], "ctxs": [{"id": "7", "title": "", "text": "a", "score": 1.5}]}]', "run"),
    ("rank.txt", "q1\td1\t12.5", "run"),
    ("corpus.jsonl", '{"docid": "d1", "title": "", "text": "a bird"}', "corpus"),
    ("contexts.json", '{"docid": "0", "anchor": "a bird", "query": ["which?"]}', "corpus"),
    ("spans.json", '{"spans": ["a bird", "it does not fly"]}', "corpus"),
    ("asked.json", '{"query_id": "q1", "query": "which?"}', "queries"),
    ("train.jsonl", '{"query_id": "1", "query": "w", "positive_passages": [{"docid": "d", "title": "", "text": "a"}]}', "examples"),
    ("asked 2.tsv", "q1\twho won 1998", "queries"),
    ("sport.tsv", "7\tis it 5 or six", "queries"),
    ("it's.trec", "q1 Q0 d1 1 2.5 tag", "run"),
    ("corpus.jsonl", '{"_id": "d1", "text": "a bird"}', "corpus"),
    (
        "nq.json",
        '[\n  {\n    "question": "w",\n    "answers": [],\n    "ctxs": [{"id": "7", "title": "", "text": "a", "score": 1}]\n  }\n]',
        "run",
    ),
    ("minedHN.jsonl", '{"query": "which?", "pos": ["a bird"], "neg": ["a stone"]}', "examples"),
]


@pytest.mark.parametrize(("name", "content", "kind"), FILES, ids=[f"{name}-{kind}" for name, _, kind in FILES])
def test_the_command_imports_it(name: str, content: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(f"{content}\n")
    if Path(name).name == "corpus.jsonl":
        Path(name).with_name("queries.jsonl").write_text('{"_id": "q1", "text": "which?"}\n')
    with pytest.raises(InputError) as caught:
        Artifact.open(name, kind)
    message = re.fullmatch(
        r"(.+): is a file, not an artifact of raydense; (rename it to (.+), )?make one with `(.+)`, and give (.+)", str(caught.value)
    )
    assert message, str(caught.value)
    if message[3]:
        Path(name).rename(message[3])
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(message[4])[1:])
    assert ended.value.code == 0
    (made,) = Path().glob(shlex.split(message[5])[0].replace("SPLIT", "*"))
    assert Artifact.open(made, kind).rows


def test_a_file_that_holds_something_else_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "run.tsv").write_text("1\t7\t1\n")
    with pytest.raises(InputError, match="it looks like run of the format msmarco; give qrels"):
        Artifact.open(tmp_path / "run.tsv", "qrels")


def test_a_file_of_no_known_kind_names_the_verb(tmp_path: Path) -> None:
    for content in (b"\x00\x01", b"\x1f\x8brubbish", b'[\n  {\n    "name": 1\n  }\n]\n'):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(InputError, match="import it with `raydense import`, whose help lists the formats"):
            Artifact.open(tmp_path / "x", "run")


def test_a_link_is_named_as_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "blob").write_text("q1 Q0 d1 1 2.5 tag\n")
    (tmp_path / "bm25.trec").symlink_to("blob")
    with pytest.raises(InputError, match=rf"--input {tmp_path}/bm25\.trec --output data/bm25`"):
        Artifact.open(tmp_path / "bm25.trec", "run")
