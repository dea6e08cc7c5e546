"""Raw question-answer data is read line by line, in blocks or whole, and each fault is one line that says where it is."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydense.construction import questions
from raydense.construction.questions import Block, Document, Question, blocks, question_files, read_block
from raydense.errors import InputError

DEMO = Path(__file__).parents[3] / "shared" / "data" / "dureader-demo" / "raw"
GOOD = {"id": "a", "question": "which?", "answers": ["this"], "documents": [{"title": "T", "paragraphs": ["p one", ""]}]}


def read_questions(source: Path) -> list[Question]:
    return [question for path in question_files(source) for question in read_block(Block(path, 0, None))]


def lines(path: Path, *rows: object) -> Path:
    """A file of these rows as JSON lines, or of bytes as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join((row if isinstance(row, bytes) else json.dumps(row, ensure_ascii=False).encode()) + b"\n" for row in rows))
    return path


@pytest.mark.skipif(not DEMO.is_dir(), reason="no DuReader demo here")
def test_the_demo_of_dureader():
    found = list(read_questions(DEMO))
    raw = [json.loads(line) for name in ("search.dev.json", "search.train.json") for line in (DEMO / name).read_bytes().splitlines()]
    assert [(q.id, q.text, q.answers) for q in found] == [(str(r["question_id"]), r["question"], r["answers"]) for r in raw]
    assert [[(d.title, d.paragraphs) for d in q.documents] for q in found] == [
        [(d["title"], d["paragraphs"]) for d in r["documents"]] for r in raw
    ]
    assert Counter(q.split for q in found) == {"dev": 100, "train": 100}
    assert found[100].where == f"{DEMO}/search.train.json:1"
    assert found[0].documents[1].id == f"{found[0].id}-1"


def test_plain_lines(tmp_path):
    other = {"id": 7, "question": "另一个？", "documents": [{"id": 5, "text": "abc\ndef"}], "split": "mine", "answers": None}
    spans = {"answer_spans": [{"document": 0, "start": 2, "end": 7}, {"document": 0, "start": 0, "end": 1}], "answers": ["p"]}
    spanned = GOOD | {"question_id": "s"} | spans | {"documents": [{"paragraphs": ["p one", "two"]}]}
    tokens = GOOD | {"id": "t", "answer_spans": [[0, 99]], "documents": []}
    path = lines(tmp_path / "x.jsonl", b"\xef\xbb\xbf" + json.dumps(GOOD).encode(), b" ", other, spanned, tokens)
    at = [f"{path}:{n}" for n in (1, 3, 4, 5)]
    assert list(read_questions(path)) == [
        Question("a", "which?", ["this"], [Document("a-0", "T", ["p one", ""])], "", at[0]),
        Question("7", "另一个？", [], [Document("5", "", ["abc\ndef"])], "mine", at[1]),
        Question("s", "which?", ["p", "one\nt"], [Document("s-0", "", ["p one", "two"])], "", at[2]),
        Question("t", "which?", ["this"], [], "", at[3]),
    ]


@pytest.mark.parametrize("ending", ["json", "json.gz"])
@pytest.mark.parametrize("step", [40, 10_000])
def test_a_line_that_does_not_end_is_refused_before_it_is_held(ending, step, tmp_path, monkeypatch):
    """As a JSON list of all questions is, which is one line."""
    path = lines(tmp_path / f"x.{ending}", GOOD, json.dumps([GOOD] * 20).encode())
    if ending == "json.gz":
        path.write_bytes(gzip.compress(path.read_bytes()))
    monkeypatch.setattr(questions, "LONGEST_LINE", 1 << 20)
    assert len(blocks(path, step)) >= 1
    monkeypatch.setattr(questions, "LONGEST_LINE", 500)
    with pytest.raises(InputError, match=r"x\.json(\.gz)?:2: a line of more than 0 MiB; give one question a line"):
        [list(read_block(block)) for block in blocks(path, step)]
    if (step, ending) == (40, "json"):
        with pytest.raises(InputError, match=r"x\.json:2: a line of more than"):
            blocks(path, step)


def test_a_folder_of_folders_and_gzip(tmp_path):
    lines(tmp_path / "trainset/search.train.json", GOOD | {"id": "b"})
    (tmp_path / "devset").mkdir()
    with gzip.open(tmp_path / "devset/zhidao.dev.json.gz", "wb") as stream:
        stream.write(b"\n" + json.dumps(GOOD).encode())
    (tmp_path / "readme.md").write_text("no questions")
    (tmp_path / "devset/._zhidao.dev.json").write_text("of another system")
    (tmp_path / "trainset/search.train.json.gz").write_bytes(b"the same, packed")
    found = list(read_questions(tmp_path))
    assert [(q.id, q.split, q.where.removeprefix(f"{tmp_path}/")) for q in found] == [
        ("a", "dev", "devset/zhidao.dev.json.gz:2"),
        ("b", "train", "trainset/search.train.json:1"),
    ]
    packed, whole = question_files(tmp_path)
    assert blocks(packed, 1) == [Block(packed, 0, None)]
    assert blocks(whole, 1 << 20) == [Block(whole, 0, whole.stat().st_size)]


def test_a_question_may_have_neither_answers_nor_documents(tmp_path):
    rows = ({"id": "a", "question": "q"}, {"id": "b", "question": "q", "answers": None, "documents": None})
    assert [(q.answers, q.documents) for q in read_questions(lines(tmp_path / "x.jsonl", *rows))] == [([], [])] * 2


SPAN = "answer_spans"
BAD = {
    "cut short": (b'{"id": "b", "question": "wh', r"x\.jsonl:2: not JSON \(Unterminated string.*\); correct the line"),
    "a list": ([GOOD], r"x\.jsonl:2: not a JSON object but list"),
    "GB18030": ('{"id": "b", "question": "哪个"}'.encode("gb18030"), r"x\.jsonl:2: not UTF-8 \(byte 0xc4\); convert the file to UTF-8"),
    "no id": ({"question": "q", "documents": []}, r"x\.jsonl:2: no 'question_id'"),
    "an id that is a list": (GOOD | {"id": ["b"]}, r"x\.jsonl:2: 'id' is \[\"b\"\], not a string or a whole number"),
    "a blank id": (GOOD | {"id": " "}, r"x\.jsonl:2: empty question_id"),
    "no question": ({"id": "b", "documents": []}, r"x\.jsonl:2: no 'question'"),
    "a blank question": (GOOD | {"id": "b", "question": " "}, r"x\.jsonl:2: empty question"),
    "documents that are texts": (GOOD | {"id": "b", "documents": ["d"]}, r"x\.jsonl:2: 'documents' is \[\"d\"\], not a list of objects"),
    "an answer that is a number": (GOOD | {"id": "b", "answers": [4]}, r"x\.jsonl:2: 'answers' is \[4\], not a list of strings"),
    "answers that are a text": (GOOD | {"id": "b", "answers": "a"}, r"x\.jsonl:2: 'answers' is \"a\", not a list of strings"),
    "a paragraph that is a list": (
        GOOD | {"id": "b", "documents": [{"text": "t"}, {"paragraphs": [["p"]]}]},
        r"x\.jsonl:2: documents\[1\]: 'paragraphs' is \[\[\"p\"\]\], not a list of strings",
    ),
    "a document without text": (GOOD | {"id": "b", "documents": [{"title": "t"}]}, r"x\.jsonl:2: documents\[0\]: no 'text'"),
    "half of a surrogate pair": (
        b'{"id": "b", "question": "\\ud83d", "documents": []}',
        r"x\.jsonl:2: 'question' holds half of a surrogate",
    ),
    "a split that is a path": (
        GOOD | {"id": "b", "split": "../../../evil"},
        r"x\.jsonl:2: 'qrels/\.\./\.\./\.\./evil' cannot be the name of a part of a data set",
    ),
    "a split of two names": (GOOD | {"id": "b", "split": "x/y"}, r"x\.jsonl:2: 'qrels/x/y' cannot be the name of a part of a data set"),
    "a blank split": (GOOD | {"id": "b", "split": " "}, r"x\.jsonl:2: 'qrels/ ' cannot be the name of a part of a data set"),
    "a span past the end": (
        GOOD | {"id": "b", SPAN: [{"document": 0, "start": 3, "end": 8}]},
        r"x\.jsonl:2: answer_spans: 3 to 8 is not in document 0, which has 6 characters",
    ),
    "a span from its end to its start": (GOOD | {"id": "b", SPAN: [{"document": 0, "start": 3, "end": 1}]}, r"3 to 1 is not in document 0"),
    "a span in no document": (GOOD | {"id": "b", SPAN: [{"document": 1, "start": 0, "end": 1}]}, r"answer_spans: document 1 of 1"),
    "a span in no list": (
        GOOD | {"id": "b", SPAN: {"document": 0, "start": 0, "end": 1}},
        r"x\.jsonl:2: 'answer_spans' is \{\"document\": 0, \"start\": 0, \"end\": 1\}, not a list; correct the entry",
    ),
    "a span of texts": (GOOD | {"id": "b", SPAN: [{"document": 0, "start": "0", "end": 1}]}, r"is not \{document, start, end\} in whole"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_fault_is_one_line(case, tmp_path):
    row, message = BAD[case]
    with pytest.raises(InputError, match=message) as caught:
        list(read_questions(lines(tmp_path / "x.jsonl", GOOD, row)))
    assert "\n" not in str(caught.value)


def test_nothing_to_read(tmp_path):
    (tmp_path / "none").mkdir()
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(json.dumps(GOOD).encode())[:-9])
    for name, message in (
        ("none", "holds no file of questions"),
        ("gone", "no such file or folder"),
        ("cut.json.gz", "not a complete gzip file"),
    ):
        with pytest.raises(InputError, match=message):
            list(read_questions(tmp_path / name))


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(TEXT, min_size=1, max_size=12), wanted=st.integers(1, 300), gaps=st.lists(st.booleans(), max_size=12), last=st.booleans()
)
def test_blocks_are_the_file(texts, wanted, gaps, last, tmp_path_factory):
    path = tmp_path_factory.mktemp("questions") / "x.jsonl"
    rows = [json.dumps(GOOD | {"id": i, "documents": [{"text": text}]}, ensure_ascii=False) for i, text in enumerate(texts)]
    for i, gap in enumerate(gaps):
        rows.insert(min(i * 2, len(rows)), "" if gap else " ")
    path.write_bytes("\n".join(rows).encode() + (b"\n" if last else b""))
    found = blocks(path, wanted)
    assert [b.start for b in found] == [0, *(b.stop for b in found[:-1])]
    assert found[-1].stop == path.stat().st_size
    assert all(0 < b.stop - b.start < wanted + max(len(row.encode()) for row in rows) + 1 for b in found)
    assert [q for block in found for q in read_block(block)] == list(read_questions(path))
    assert [int(q.where.rpartition(":")[2]) for q in read_questions(path)] == [n for n, row in enumerate(rows, 1) if row.strip()]
