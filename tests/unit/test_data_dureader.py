"""DuReader-retrieval's own files: read as its readme describes them, written so that its evaluation reads them, and both ways the same."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raydense.data.exporting import export
from raydense.data.formats import lines
from raydense.data.formats.dureader import parts
from raydense.data.formats.json_maps import json_pairs
from raydense.data.importing import import_corpus, import_dataset
from raydense.data.settings import ExportSettings, ImportSettings
from raydense.data.store import PassageStore
from raydense.data.tables import commit_table, read_table
from raydense.errors import InputError
from raydense.storage import Artifact, Draft

TEXTS = ["太阳花播种时间:春、夏、秋", "将剪来的太阳花嫩枝头", '花卉\u2028名称 "花"', "一般用自带浏览器", "微信里面能调出app", "第六段"]
IDS = [hashlib.md5(text.encode()).hexdigest() for text in TEXTS]
ASKED = {"train": "微信打开app", "dev": "太阳花怎么养", "test1": "没有答案"}
QID = {split: hashlib.md5(text.encode()).hexdigest() for split, text in ASKED.items()}


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
    return path


def baseline(folder: Path, train: bool = True) -> Path:
    """The files of the baseline's folder, by hand, after its readme.md."""
    for part in range(2):
        put(folder / f"passage-collection/part-0{part}", "".join(f"null\t\t{text}\t0\n" for text in TEXTS[3 * part : 3 * part + 3]))
    put(folder / "passage-collection/passage2id.map.json", json.dumps({str(i): name for i, name in enumerate(IDS)}))
    answers = [{"paragraph_id": IDS[i], "paragraph_text": TEXTS[i]} for i in (1, 0)]
    line = {"question_id": QID["dev"], "question": ASKED["dev"], "answer_paragraphs": answers}
    put(folder / "dev/dev.json", json.dumps(line, ensure_ascii=False) + "\n")
    put(folder / "dev/dev.q.format", f"{ASKED['dev']}\t\t\t0\n")
    put(folder / "dev/q2qid.dev.json", json.dumps({ASKED["dev"]: QID["dev"]}, ensure_ascii=False, indent=1))
    put(folder / "test1/test1.json", json.dumps({"question": ASKED["test1"], "question_id": QID["test1"]}) + "\n")
    put(folder / "auxiliary/dev.retrieval.top50.res.id_map.tsv", "".join(f"{QID['dev']}\t{IDS[i]}\n" for i in (4, 1, 5)))
    put(folder / "auxiliary/dev.retrieval.top50.res.tsv", "".join(f"{ASKED['dev']}\t\t{TEXTS[i]}\t0\n" for i in (4, 1, 5)))
    if train:
        put(
            folder / "train/dual.train.tsv",
            "".join(f"{ASKED['train']}\t\t{TEXTS[p]}\t\t{TEXTS[n]}\t0\n" for p, n in ((3, 5), (4, 0), (3, 0))),
        )
        pairs = ((3, 1), (5, 0), (4, 1))
        put(folder / "train/cross.train.tsv", "".join(f"{ASKED['train']}\t\t{TEXTS[p]}\t{label}\n" for p, label in pairs))
    put(folder / "readme.md", "## train/\n")
    put(folder / "dev/._dev.json", "of another system")
    put(folder / "dev/dev.json.gz", "the same, packed")
    return folder


def imported(source: Path, output: Path, **more: Any) -> Path:
    import_dataset(ImportSettings(format="dureader", input=str(source), output=str(output), **more))
    return output


def exported(output: Path, **given: Any) -> Path:
    export(ExportSettings(format="dureader", output=str(output), **{k: str(v) for k, v in given.items()}))
    return output


def rows(path: Path, kind: str) -> list[dict[str, Any]]:
    return read_table(path, kind).to_pylist()


def judged(path: Path) -> list[tuple[str, str, int]]:
    return [(r["query_id"], r["passage_id"], r["relevance"]) for r in rows(path, "qrels")]


def corpus(path: Path) -> list[tuple[str, str, str]]:
    store = PassageStore(path)
    found = store.slice(0, len(store)).to_pydict()
    return list(zip(found["passage_id"], found["title"], found["text"], strict=True))


def test_the_baselines_folder(tmp_path):
    out = imported(baseline(tmp_path / "in"), tmp_path / "out")
    assert corpus(out / "corpus") == [(name, "", text) for name, text in zip(IDS, TEXTS, strict=True)]
    made = hashlib.sha256(ASKED["train"].encode()).hexdigest()[:16]
    asked = {r["query_id"]: r["text"] for r in rows(out / "queries", "queries")}
    assert asked == {QID["dev"]: ASKED["dev"], QID["test1"]: ASKED["test1"], made: ASKED["train"]}
    assert judged(out / "qrels/dev") == [(QID["dev"], IDS[1], 1), (QID["dev"], IDS[0], 1)]
    assert rows(out / "examples/dual.train", "examples") == [{"query_id": made, "positives": [3, 4], "negatives": [5, 0]}]
    assert rows(out / "examples/cross.train", "examples") == [{"query_id": made, "positives": [3, 4], "negatives": [5]}]
    assert judged(out / "qrels/train") == [(made, IDS[3], 1), (made, IDS[4], 1)]
    assert [(r["passage_id"], r["rank"]) for r in rows(out / "run", "run")] == [(IDS[4], 1), (IDS[1], 2), (IDS[5], 3)]
    assert set(Artifact.open(out).summary["parts"]) == {
        *("corpus", "queries", "run", "qrels/dev", "qrels/train", "examples/dual.train", "examples/cross.train")
    }
    assert parts(tmp_path / "in") == {*Artifact.open(out).summary["parts"], "qrels/test1"}, "whether a split is judged is not looked at"
    assert import_corpus("dureader", tmp_path / "in", tmp_path / "alone").files == Artifact.open(out / "corpus").files


def test_parts_are_joined_in_the_order_of_their_numbers(tmp_path):
    for part in range(12):
        put(tmp_path / f"in/part-{part}", f"null\t\ttext {part}\t0\n")
    put(tmp_path / "in/passage2id.map.json", json.dumps({str(part): f"id {part}" for part in range(12)}))
    made = import_corpus("dureader", tmp_path / "in", tmp_path / "out")
    assert corpus(made.path) == [(f"id {part}", "", f"text {part}") for part in range(12)]


def test_judgements_of_train_are_the_positives_of_all_training_files(tmp_path):
    folder = baseline(tmp_path / "in")
    with open(folder / "train/dual.train.tsv", "a", encoding="utf-8") as stream:
        stream.write(f"{ASKED['train']}\t\t{TEXTS[1]}\t\t{TEXTS[2]}\t0\n又一个问题\t\t{TEXTS[0]}\t\t{TEXTS[2]}\t0\n")
    out = imported(folder, tmp_path / "out")
    made, other = (hashlib.sha256(asked.encode()).hexdigest()[:16] for asked in (ASKED["train"], "又一个问题"))
    assert judged(out / "qrels/train") == [(made, IDS[3], 1), (made, IDS[4], 1), (made, IDS[1], 1), (other, IDS[0], 1)]


def test_two_files_of_questions_of_one_name_are_refused(tmp_path):
    line = {"question_id": "m", "question": "x", "answer_paragraphs": [{"paragraph_id": IDS[3], "paragraph_text": "x"}]}
    other = put(baseline(tmp_path / "in") / "cmedqa/dev.json", json.dumps(line))
    with pytest.raises(InputError) as caught:
        imported(tmp_path / "in", tmp_path / "out")
    assert f"{tmp_path / 'in/dev/dev.json'}: has the name of {other}, and both would be the split dev; rename" in str(caught.value)
    assert not (tmp_path / "out").exists()
    other.rename(other.with_name("cmedqa.json"))
    out = imported(tmp_path / "in", tmp_path / "out")
    assert judged(out / "qrels/cmedqa") == [("m", IDS[3], 1)]
    assert len(judged(out / "qrels/dev")) == 2


def test_questions_of_train_give_ids_to_its_texts(tmp_path):
    folder = baseline(tmp_path / "in")
    line = {"question_id": "t1", "question": ASKED["train"], "answer_paragraphs": [{"paragraph_id": IDS[3], "paragraph_text": "x"}]}
    put(folder / "train/train.json", json.dumps(line))
    out = imported(folder, tmp_path / "out")
    assert judged(out / "qrels/train") == [("t1", IDS[3], 1)]
    assert [r["query_id"] for r in rows(out / "examples/dual.train", "examples")] == ["t1"]


def test_a_whole_data_set_both_ways(tmp_path, capfd):
    first = imported(baseline(tmp_path / "in"), tmp_path / "first")
    folder = exported(tmp_path / "files", dataset=first)
    assert "leaves out run, which the format dureader does not hold" in capfd.readouterr().err
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) == [
        *(f"dev/{name}" for name in ("dev.json", "dev.q.format", "q2qid.dev.json")),
        *(f"passage-collection/{name}" for name in ("part-00", "part-01", "part-02", "passage2id.map.json")),
        *(f"test1/{name}" for name in ("q2qid.test1.json", "test1.json", "test1.q.format")),
        *(f"train/{name}" for name in ("cross.train.tsv", "dual.train.tsv", "q2qid.train.json", "train.json", "train.q.format")),
    ]
    second = imported(folder, tmp_path / "second")
    for split in ("cross.train", "dual.train"):
        made, again = ([(r["positives"], r["negatives"]) for r in rows(data / f"examples/{split}", "examples")] for data in (first, second))
        assert made == again
    queries = [sorted(map(str, rows(data / "queries", "queries"))) for data in (first, second)]
    assert queries[0] == queries[1], "also the query of train keeps its id"
    assert [sorted(judged(data / "qrels/train")) for data in (first, second)] == [sorted(judged(first / "qrels/train"))] * 2


def test_a_folder_both_ways(tmp_path):
    first = imported(baseline(tmp_path / "in", train=False), tmp_path / "first")
    folder = exported(tmp_path / "files", corpus=first / "corpus", queries=first / "queries", qrels=first / "qrels/dev")
    again = imported(folder, tmp_path / "again")
    assert corpus(again / "corpus") == corpus(first / "corpus")
    assert sorted(map(str, rows(again / "queries", "queries"))) == sorted(map(str, rows(first / "queries", "queries")))
    assert judged(again / "qrels/dev") == judged(first / "qrels/dev")
    assert (folder / "dev/dev.json").read_bytes() == (tmp_path / "in/dev/dev.json").read_bytes()
    assert json.loads((folder / "passage-collection/passage2id.map.json").read_text()) == {str(i): name for i, name in enumerate(IDS)}
    lines = [line for part in sorted((folder / "passage-collection").glob("part-*")) for line in part.read_text().split("\n")[:-1]]
    assert [line.split("\t") for line in lines] == [["-", "", text, "0"] for text in TEXTS]


def test_examples_both_ways(tmp_path):
    first = imported(baseline(tmp_path / "in"), tmp_path / "first")
    parts = {"corpus": first / "corpus", "queries": first / "queries", "qrels": first / "qrels/train"}
    folder = exported(tmp_path / "files", **parts, examples=first / "examples/dual.train")
    again = imported(folder, tmp_path / "again")
    assert rows(again / "examples/dual.train", "examples") == rows(first / "examples/dual.train", "examples")
    assert judged(again / "qrels/train") == judged(first / "qrels/train")


def evaluation(reference: Path, candidates: Path) -> dict[str, float]:
    """MRR@10 and recall of the two files as README.md of the baseline defines them, read here by themselves."""
    wanted = {q["question_id"]: {p["paragraph_id"] for p in q["answer_paragraphs"]} for q in map(json.loads, reference.open())}
    ranks = {q: [n for n, p in enumerate(hits[:50], 1) if p in wanted[q]] for q, hits in json.loads(candidates.read_text()).items()}
    mean = lambda values: sum(values) / len(wanted)  # noqa: E731
    return {
        "mrr@10": mean([1 / r[0] for r in ranks.values() if r and r[0] <= 10]),
        "recall@1": mean([r[:1] == [1] for r in ranks.values()]),
    }


def test_a_run_is_what_the_evaluation_reads(tmp_path):
    rng = np.random.default_rng(0)
    candidates = {f"q{n}": [f"p{i}" for i in rng.permutation(300)[:50]] for n in range(20)}
    put(tmp_path / "dual_res.json", json.dumps(candidates, indent="\t"))
    out = imported(tmp_path / "dual_res.json", tmp_path / "out")
    found = rows(out / "run", "run")
    assert [(r["query_id"], r["passage_id"]) for r in found] == [(q, p) for q, hits in candidates.items() for p in hits]
    assert [r["rank"] for r in found] == [*range(1, 51)] * 20
    assert np.allclose([r["score"] for r in found], 1 / np.array([*range(1, 51)] * 20))
    again = exported(tmp_path / "again.json", run=out / "run")
    assert json.loads(again.read_text()) == candidates
    reference = [
        {"question_id": q, "question": q, "answer_paragraphs": [{"paragraph_id": hits[n % 12]}]}
        for n, (q, hits) in enumerate(candidates.items())
    ]
    put(tmp_path / "dev.json", "".join(json.dumps(line) + "\n" for line in reference))
    expected = np.mean([1 / (n % 12 + 1) if n % 12 < 10 else 0 for n in range(20)])
    assert evaluation(tmp_path / "dev.json", again) == pytest.approx({"mrr@10": expected, "recall@1": 2 / 20})


def test_two_runs_have_names(tmp_path):
    for name in ("dual_res", "cross_res"):
        put(tmp_path / f"in/{name}.json", json.dumps({"q": ["a", "b"]}))
    out = imported(tmp_path / "in", tmp_path / "out")
    assert sorted(Artifact.open(out).summary["parts"]) == ["run/cross_res", "run/dual_res"]


MAP, PART, DEV, DUAL = "passage-collection/passage2id.map.json", "passage-collection/part-01", "dev/dev.json", "train/dual.train.tsv"
BAD = {
    "a part of other columns": (PART, "a passage\n", r"part-01:1: 1 columns, not 4; lines are 0<TAB>1<TAB>passage_text<TAB>3"),
    "an empty passage": (PART, "null\t\t \t0\n" * 3, r"part-01:1: empty text"),
    "a passage too many": (PART, "null\t\tx\t0\n" * 4, r"part-01:4: is passage 6, counted from 0, which .*passage2id\.map\.json does not have"),
    "a passage too few": (PART, "null\t\tx\t0\n" * 2, r"passage2id\.map\.json: names 6 passages, of which the parts hold 5"),
    "a map that is cut short": (MAP, '{"0": "a",\n"1": "b"', r"passage2id\.map\.json:2: not JSON \(.*\)"),
    "a map that is a list": (MAP, '["a"]', r"passage2id\.map\.json: not a JSON object"),
    "a map of numbers": (MAP, '{"0": "a",\n"1": 7}', r"passage2id\.map\.json:2: maps '1' to 7, not a line to an id"),
    "a map of names": (MAP, '{"0": "a",\n"x": "b"}', r"passage2id\.map\.json:2: maps 'x' to 'b', not a line to an id"),
    "a map nested too deep": (MAP, '{"0": "a",\n"1": ' + "[" * 200_000, r"passage2id\.map\.json:2: not JSON \(nested too deep\)"),
    "a map with more after it": (MAP, '{"0": "a"}\n{"1": "b"}', r"passage2id\.map\.json:1: not JSON"),
    "a map with a gap": (MAP, json.dumps({str(i): IDS[i] for i in (0, 1, 2, 4, 5)}), r"json: its lines are not 0 to 4: line 3 is missing"),
    "a map in another encoding": (MAP, "", r"passage2id\.map\.json: empty file"),
    "a question cut short": (DEV, '{"question_id": "q"\n', r"dev\.json:1: not JSON"),
    "a question without its text": (DEV, '{"question_id": "q"}', r"dev\.json:1: no 'question'"),
    "a paragraph without its id": (
        DEV,
        '{"question_id": "q", "question": "x", "answer_paragraphs": [{"paragraph_text": "t"}]}',
        r"dev\.json:1: no 'paragraph_id'",
    ),
    "a paragraph that the collection lacks": (
        DEV,
        '{"question_id": "q", "question": "x", "answer_paragraphs": [{"paragraph_id": "t"}]}',
        r"dev\.json:1: names passage 't', which the corpus does not have",
    ),
    "two questions of one id": (
        DEV,
        '{"question_id": "q", "question": "x"}\n{"question_id": "q", "question": "y"}',
        r"dev\.json:2: query 'q' has another text than at \S+dev\.json:1",
    ),
    "a map with half of a surrogate pair": (MAP, '{"0": "a",\n"1": "\\ud800"}', r"map\.json:2: holds half of a surrogate pair; correct it"),
    "an id with half of a surrogate pair": ("dev/q2qid.dev.json", '{"x":\n"q",\n"\\ud800": "r"}', r"q2qid\.dev\.json:3: holds half of"),
    "a run with half of a surrogate pair": (
        "auxiliary/res.json",
        f'{{"{QID["dev"]}": ["{IDS[0]}"],\n"{QID["test1"]}": ["\\ud83d\\ude00", "\\ud83d"]}}',
        r"res\.json:2: holds half of",
    ),
    "a run of a query with half of one": ("auxiliary/res.json", '{"q\\uDFFF": ["p"]}', r"res\.json:1: holds half of a surrogate pair"),
    "an id that is a list": ("dev/q2qid.dev.json", '{"x":\n["q"]}', r"q2qid\.dev\.json:1: maps 'x' to \['q'\], not to an id"),
    "a text that the collection lacks": (
        DUAL,
        f"q\t\t{TEXTS[0]}\t\tunknown\t0\n",
        r"dual\.train\.tsv:1: has a text that no passage of the corpus has: 'unknown'",
    ),
    "an empty text": (DUAL, f"q\t\t{TEXTS[0]}\t\t\t0\n", r"dual\.train\.tsv:1: empty negative"),
    "columns of the other training file": (DUAL, "q\t\tx\t0\n", r"dual\.train\.tsv:1: 4 columns, not 6"),
    "a label that is a word": ("train/cross.train.tsv", f"q\t\t{TEXTS[0]}\tyes\n", r"cross\.train\.tsv:1: label is 'yes'"),
    "a run whose list is a text": ("auxiliary/res.json", '{"q": [],\n"r": "p"}', r"res\.json:2: its list is p, not ids of passages"),
    "a run with a passage twice": ("auxiliary/res.json", json.dumps({QID["dev"]: [IDS[0], IDS[0]]}), r"res\.json:1: names passage .* twice"),
    "a run of another query": ("auxiliary/res.json", json.dumps({"q": IDS[:1]}), r"res\.json:1: names query 'q', which the queries do not have"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_with_its_place(case, tmp_path):
    name, content, message = BAD[case]
    put(baseline(tmp_path / "in") / name, content)
    with pytest.raises(InputError, match=message) as caught:
        imported(tmp_path / "in", tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_what_a_folder_lacks(tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="holds no file of DuReader-retrieval"):
        imported(tmp_path / "none", tmp_path / "out")
    (baseline(tmp_path / "in") / MAP).unlink()
    with pytest.raises(InputError, match=r"does not hold one passage2id\.map\.json, but 0"):
        imported(tmp_path / "in", tmp_path / "out")
    with pytest.raises(InputError, match=r"dual\.train\.tsv: has texts, no ids: it needs the corpus"):
        imported(tmp_path / "in" / DUAL, tmp_path / "out")
    (tmp_path / "in/auxiliary/gbk.json").write_bytes('{"一":\n["二"]}'.encode("gb18030"))
    with pytest.raises(InputError, match=r"gbk\.json:2: not UTF-8 \(byte 0xb6\)"):
        imported(tmp_path / "in/auxiliary/gbk.json", tmp_path / "out")


def test_texts_that_the_collection_lacks_can_be_left_out(tmp_path, capfd):
    folder = baseline(tmp_path / "in")
    put(folder / DUAL, f"q\t\t{TEXTS[0]}\t\tunknown\t0\nr\t\tunknown\t\t{TEXTS[1]}\t0\n")
    out = imported(folder, tmp_path / "out", strict=False)
    assert [(r["positives"], r["negatives"]) for r in rows(out / "examples/dual.train", "examples")] == [([0], [])]
    assert "dual.train.tsv: 2 passages that the corpus does not have left out, of 4" in capfd.readouterr().err


def test_what_the_files_cannot_hold_is_refused(tmp_path, capfd):
    put(tmp_path / "in/corpus.jsonl", '{"_id": "p", "title": "T", "text": "a b"}\n{"_id": "r", "text": "x"}\n')
    put(tmp_path / "in/queries.jsonl", '{"_id": "q", "text": "x", "answers": ["a"]}\n')
    put(tmp_path / "in/qrels/test.tsv", "query-id\tcorpus-id\tscore\nq\tp\t2\n")
    import_dataset(ImportSettings(format="beir", input=str(tmp_path / "in"), output=str(tmp_path / "data")))
    data = tmp_path / "data"
    with pytest.raises(InputError, match="qrels and examples need their texts"):
        exported(tmp_path / "out", qrels=data / "qrels/test")
    with pytest.raises(InputError, match="has grades above 1, which answer_paragraphs cannot hold"):
        exported(tmp_path / "out", dataset=data)
    assert not (tmp_path / "out").exists()
    put(tmp_path / "in/qrels/test.tsv", "query-id\tcorpus-id\tscore\nq\tp\t1\nq\tr\t0\n")
    import_dataset(ImportSettings(format="beir", input=str(tmp_path / "in"), output=str(tmp_path / "data3")))
    folder = exported(tmp_path / "out", dataset=tmp_path / "data3")
    shown = capfd.readouterr().err
    assert "export test: leaves out 1 judgements that a passage does not answer" in shown
    assert "leaves out the answers of the queries" in shown
    assert [json.loads(line)["answer_paragraphs"] for line in (folder / "test/test.json").open()] == [
        [{"paragraph_id": "p", "paragraph_text": "T a b"}]
    ]


def test_a_query_without_an_answer_is_not_one_without_judgements(tmp_path, capfd):
    put(tmp_path / "in/corpus.jsonl", '{"_id": "p", "text": "a"}\n')
    put(tmp_path / "in/queries.jsonl", "".join(f'{{"_id": "q{n}", "text": "x{n}"}}\n' for n in range(4)))
    put(tmp_path / "in/qrels/test.tsv", "query-id\tcorpus-id\tscore\nq0\tp\t1\nq1\tp\t0\nq2\tother\t1\n")
    given = {"format": "beir", "input": str(tmp_path / "in"), "output": str(tmp_path / "data"), "strict": False}
    import_dataset(ImportSettings.read(given))
    folder = exported(tmp_path / "out", dataset=tmp_path / "data")
    asked = {split: [json.loads(line)["question_id"] for line in (folder / f"{split}/{split}.json").open()] for split in ("test", "test1")}
    assert asked == {"test": ["q0"], "test1": ["q3"]}
    said = capfd.readouterr().err
    assert f"export test: 1 of 2 judgements of {tmp_path / 'data/qrels/test'} name passages that the corpus lacks: left out" in said
    assert "export test: leaves out 2 queries, of which no judgement is left" in said


def test_a_split_of_the_name_of_the_collection_is_refused(tmp_path):
    first = imported(baseline(tmp_path / "in", train=False), tmp_path / "first")
    with pytest.raises(InputError, match="a split called passage-collection would lie in the folder of the passages; rename that split"):
        exported(tmp_path / "out", dataset=first, qrels=f"passage-collection={first / 'qrels/dev'}")
    assert not (tmp_path / "out").exists()


def test_examples_of_queries_that_were_removed_are_left_out(tmp_path, capfd):
    folder = baseline(tmp_path / "in")
    with open(folder / "train/dual.train.tsv", "a", encoding="utf-8") as stream:
        stream.write(f"又一个问题\t\t{TEXTS[0]}\t\t{TEXTS[2]}\t0\n")
    first = imported(folder, tmp_path / "first")
    kept = [row for row in judged(first / "qrels/train") if row[1] == IDS[0]]
    draft = Draft.open(tmp_path / "clean", "qrels", {})
    commit_table(
        draft, "qrels.parquet", pa.table({name: [row[i] for row in kept] for i, name in enumerate(("query_id", "passage_id", "relevance"))})
    )
    draft.finish(len(kept))
    files = exported(tmp_path / "files", dataset=first, qrels=f"train={tmp_path / 'clean'}")
    assert "export: leaves out 1 of 2 examples of dual.train, of these queries" in capfd.readouterr().err
    assert (files / "train/dual.train.tsv").read_text(encoding="utf-8") == f"又一个问题\t\t{TEXTS[0]}\t\t{TEXTS[2]}\t0\n"
    assert (files / "train/cross.train.tsv").read_text(encoding="utf-8") == ""


def test_tabs_and_line_breaks_of_passages_become_a_blank(tmp_path, capfd):
    texts = ["one\ttwo", "三\r\n\n四\u2028五", "a  b", " x\ry ", "\nends\n"]
    lines = ({"query": f"q{i}", "pos": [text], "neg": [texts[i - 1]]} for i, text in enumerate(texts))
    put(tmp_path / "in/pairs.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    import_dataset(ImportSettings(format="flagembedding", input=str(tmp_path / "in/pairs.jsonl"), output=str(tmp_path / "first")))
    first = tmp_path / "first"
    order = [text for _, _, text in corpus(first / "corpus")]
    assert sorted(order) == sorted(texts)
    folder = exported(tmp_path / "files", **{kind: first / kind for kind in ("corpus", "queries")}, examples=first / "examples/pairs")
    assert "tabs and line breaks became a blank in 3 of 5 passages: the format cannot hold them" in capfd.readouterr().err
    becomes = dict(zip(texts, ["one two", "三 四\u2028五", "a  b", "x y", "ends"], strict=True))
    again = imported(folder, tmp_path / "again")
    assert [text for _, _, text in corpus(again / "corpus")] == [becomes[text] for text in order]
    made, found = (
        sorted((r["positives"], r["negatives"]) for r in rows(next(data.glob("examples/*")), "examples")) for data in (first, again)
    )
    assert made == found, "the texts of training files are those of the collection"


def test_answer_paragraphs_have_the_texts_of_the_collection(tmp_path):
    put(tmp_path / "in/corpus.jsonl", '{"_id": "p", "title": "T", "text": "a\\n\\tb"}\n{"_id": "r", "text": "x"}\n')
    put(tmp_path / "in/queries.jsonl", '{"_id": "q", "text": "x"}\n')
    put(tmp_path / "in/qrels/test.tsv", "query-id\tcorpus-id\tscore\nq\tp\t1\n")
    import_dataset(ImportSettings(format="beir", input=str(tmp_path / "in"), output=str(tmp_path / "data")))
    folder = exported(tmp_path / "out", dataset=tmp_path / "data")
    assert (folder / "passage-collection/part-00").read_text() == "-\t\tT a b\t0\n"
    [asked] = [json.loads(line) for line in (folder / "test/test.json").open()]
    assert asked["answer_paragraphs"] == [{"paragraph_id": "p", "paragraph_text": "T a b"}]


MAPS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), st.lists(st.sampled_from(['"],', '",', "a", "]"]), max_size=3), st.integers()),
    max_size=12,
)  # fmt: skip


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(found=MAPS, indent=st.sampled_from([None, 1, "\t"]), size=st.integers(40, 200), escaped=st.booleans())
def test_a_map_in_pieces_is_the_map(found, indent, size, escaped, tmp_path_factory, monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", size)
    path = put(tmp_path_factory.mktemp("map") / "m.json", json.dumps(found, indent=indent, ensure_ascii=escaped))
    read = [(key, value, at(i)) for pairs, at in json_pairs(path) for i, (key, value) in enumerate(pairs)]
    assert [(key, value) for key, value, _ in read] == list(found.items())
    text, line = path.read_text(encoding="utf-8"), 1
    for key, _, at in read if indent else ():
        line = next(
            n
            for n, row in enumerate(text.split("\n"), 1)
            if n > line and row.lstrip().startswith(json.dumps(key, ensure_ascii=escaped) + ":")
        )
        assert at == f"{path}:{line}"


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(found=MAPS.filter(bool), cut=st.integers(1, 300), size=st.integers(40, 200))
def test_a_map_that_is_cut_short_is_refused(found, cut, size, tmp_path_factory, monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", size)
    text = json.dumps(found, indent=1)
    path = put(tmp_path_factory.mktemp("map") / "m.json", text[: -min(cut, len(text) - 1)])
    with pytest.raises(InputError, match=r"m\.json(:\d+)?: not (JSON|a JSON object)"):
        list(json_pairs(path))
