"""adjudicate(): decisions, judgements and metrics against slow readings and ir-measures; each bad input is one line."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

import ir_measures
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ir_measures import RR, Success

from raydense.cli import main
from raydense.construction.adjudicate import adjudicate
from raydense.construction.agreement import agreements, majority, refuse_below
from raydense.construction.annotate import annotate
from raydense.construction.annotator_answers import UNSURE, AnnotatorAnswer
from raydense.construction.decisions import Decided, applied, decide
from raydense.construction.settings import AdjudicateSettings
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.forecast import Known
from raydense.storage import Artifact
from tests.annotation_world import annotate_settings, answers_of

TEXTS = ["gold", "silver", "gold", "iron", "tin", "lead", "zinc", "copper"]
QRELS = [("q", "p0", 1), ("q", "p5", 0), ("r", "p3", 2), ("none", "p1", 1)]
ONE = {"q": [("p1", 3.0), ("p2", 2.0), ("p0", 1.0), ("p4", 0.5)], "r": [("p3", 2.0), ("p6", 1.0)]}
TWO = {"q": [("p4", 3.0), ("p5", 2.0)], "r": [("p7", 2.0), ("p6", 1.0)]}
RELEVANT = {("q", "p1"), ("q", "p0"), ("r", "p6"), ("q", "p5")}


def perfect(query: str, passage: str) -> int:
    return int((query, passage) in RELEVANT)


@pytest.fixture
def annotation(tmp_path: Path) -> Artifact:
    return annotate(annotate_settings(tmp_path, TEXTS, QRELS, (ONE, TWO), package=4))


def settings(annotation: Artifact, output: str = "out", **more) -> AdjudicateSettings:
    root = Path(str(annotation.place)).parent
    given = {"annotation": annotation, "qrels": root / "run0" / "qrels", "output": root / output}
    if "threshold" not in more:
        given["judgements"] = root / "judged"
    return AdjudicateSettings(**{**given, **more})


def rows_of(artifact: Artifact) -> dict[tuple[str, str], tuple[int, str]]:
    table = pq.read_table(artifact.file("sources.pq")).to_pylist()
    return {(row["query_id"], row["passage_id"]): (row["relevance"], row["source"]) for row in table}


def test_people_add_relabel_and_confirm(annotation: Artifact, tmp_path: Path) -> None:
    answers_of(annotation, tmp_path / "judged", "ann", perfect)
    made = adjudicate(settings(annotation))
    assert rows_of(made) == {
        ("q", "p0"): (1, "gold"),  # confirmed
        ("q", "p5"): (1, "human"),  # was 0
        ("q", "p1"): (1, "human"),
        ("q", "p2"): (1, "human"),  # the text of p0, which a person confirmed
        ("q", "p4"): (0, "human"),
        ("r", "p3"): (0, "human"),  # an old positive
        ("r", "p6"): (1, "human"),
        ("r", "p7"): (0, "human"),
        ("none", "p1"): (1, "gold"),  # in no run
    }
    assert made.summary["false_negatives"] == 4
    assert made.summary["by_source"] == {"human": 4, "model": 0, "gold": 0}
    assert (made.summary["queries"], made.summary["judged_queries"]) == (3, 2), "`none` is in no run"
    assert made.summary["share_of_queries"] == 1.0
    assert made.summary["relabelled"] == 1
    assert made.summary["positives_per_query"] == {"before": 1.0, "after": 2.5}
    found = read_table(made.path, "qrels")
    assert found.column_names == ["query_id", "passage_id", "relevance"]
    assert list(dict.fromkeys(found["query_id"].to_pylist())) == ["q", "r", "none"]
    page = made.file("report.md").read_text()
    assert "| of the queries judged, those with at least one | 2 (100.00%) |" in page
    assert "| package-00000 | 4 | 1 | 0 | 0 | not reviewed |" in page
    assert made.file("disputed.jsonl").read_text() == ""


@pytest.mark.parametrize("review", [0, 2])
def test_annotate_names_the_command_that_applies_the_answers(tmp_path: Path, capfd: pytest.CaptureFixture[str], review: int) -> None:
    annotation = annotate(annotate_settings(tmp_path, TEXTS, QRELS, (ONE, TWO), review=review))
    shown = next(line for line in capfd.readouterr().err.splitlines() if "then: raydense adjudicate" in line)
    folders = {"ANSWERS": str(tmp_path / "judged"), "REVIEWS": str(tmp_path / "reviews"), "NEW": str(tmp_path / "new")}
    answers_of(annotation, tmp_path / "judged", "ann", perfect)
    assert ("review-*.html" in shown, "REVIEWS" in shown) == (review > 0, review > 0)
    if review:
        answers_of(annotation, tmp_path / "reviews", "bo", perfect, "review-")
    with pytest.raises(SystemExit) as ended:
        main([folders.get(word, word) for word in shlex.split(shown.partition("then: raydense ")[2])])
    assert ended.value.code == 0
    assert Artifact.open(tmp_path / "new", "qrels").summary["false_negatives"] == 4


def test_shares_are_those_of_the_queries_that_people_judged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Four queries, a package each; two packages are judged, and one of these two queries has a false negative."""
    texts = [f"text {number}" for number in range(8)]
    qrels = [(query, f"p{number}", 1) for number, query in enumerate("abcd")]
    run = {query: [(f"p{number}", 2.0), (f"p{number + 4}", 1.0)] for number, query in enumerate("abcd")}
    annotation = annotate(annotate_settings(tmp_path, texts, qrels, (run,), package=2, review=0))
    files = answers_of(annotation, tmp_path / "judged", "ann", lambda q, p: int((q, p) in {("a", "p0"), ("a", "p4"), ("b", "p1")}))
    for file in files[2:]:
        file.unlink()
    made = adjudicate(settings(annotation))
    summary = made.summary
    assert (summary["queries"], summary["judged_queries"], summary["not_judged"]) == (4, 2, ["package-00002", "package-00003"])
    assert (summary["queries_with_false_negatives"], summary["share_of_queries"]) == (1, 0.5)
    assert summary["positives_per_query"] == {"before": 1.0, "after": 1.5}
    said = capfd.readouterr().err
    assert "1 of 2 queries judged by people have some (50.0%)" in said
    assert "adjudicate: 2 packages are not judged yet, the first is package-00002" in said
    page = made.file("report.md").read_text()
    assert "| queries judged by people | 2 |" in page
    assert "2 packages are not judged yet, the first is package-00002." in page
    for file in files[:2]:
        file.write_text(file.read_text().splitlines()[0].replace('"answers": 2', '"answers": 0') + "\n")
    with pytest.raises(InputError, match="judged: have no answer; give the files that people downloaded after they judged"):
        adjudicate(settings(annotation, "none"))


def test_repeats_of_known_positives_are_said_apart(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """They are false negatives of queries of which nobody judged a pair, too, and the shares are not of these."""
    run = {"a": [("p0", 2.0), ("p1", 1.0)], "b": [("p4", 3.0), ("p3", 2.0), ("p5", 1.0)]}
    texts = ["one", "two", "three", "gold", "gold", "four"]
    annotation = annotate(annotate_settings(tmp_path, texts, [("a", "p0", 1), ("b", "p3", 1)], (run,), package=2, review=0))
    for file in answers_of(annotation, tmp_path / "judged", "ann", lambda q, p: int(p == "p0"))[1:]:
        file.unlink()
    made = adjudicate(settings(annotation))
    assert (made.summary["false_negatives"], made.summary["queries_with_false_negatives"]) == (1, 0)
    said = "1 false negatives, 1 of them by the text of a known positive; 0 of 1 queries judged by people have some"
    assert said in capfd.readouterr().err


def test_a_pair_without_a_majority_changes_nothing_until_somebody_decides(annotation: Artifact, tmp_path: Path, capfd) -> None:
    answers_of(annotation, tmp_path / "judged", "ann", perfect)
    answers_of(annotation, tmp_path / "judged", "bo", lambda q, p: {"p1": 0, "p3": None}.get(p, perfect(q, p)))
    made = adjudicate(settings(annotation))
    rows = rows_of(made)
    assert ("q", "p1") not in rows
    assert rows["r", "p3"] == (2, "gold")
    lines = [json.loads(line) for line in made.file("disputed.jsonl").read_text().splitlines()]
    assert [(line["passage_id"], line["text"], line["answers"], line["relevance"]) for line in lines] == [
        ("p1", "silver", {"ann": 1, "bo": 0}, None),
        ("p3", "iron", {"ann": 0, "bo": None}, None),
    ]
    final = tmp_path / "final.jsonl"
    edited = "".join(json.dumps({**line, "relevance": {"p1": 1}.get(line["passage_id"])}) + "\n\n" for line in lines)
    final.write_text(f"\ufeff{edited}", encoding="utf-8")  # as editors leave it
    flags = [f"--{name}={tmp_path / path}" for name, path in {"qrels": "run0/qrels", "judgements": "judged", "output": "x"}.items()]
    with pytest.raises(SystemExit) as ended:
        main(["adjudicate", f"--annotation={annotation.place}", *flags, f"--final={made.file('disputed.jsonl')}"])
    fix = "decides nothing: no line has relevance 1 or 0; fill in `relevance`, or leave --final out"
    assert (ended.value.code, capfd.readouterr().err.splitlines()[-1]) == (2, f"raydense: {made.file('disputed.jsonl')}: {fix}")
    assert not (tmp_path / "x").exists()
    decided = adjudicate(settings(annotation, "decided", final=final))
    assert rows_of(decided)["q", "p1"] == (1, "human")
    assert [json.loads(line)["passage_id"] for line in decided.file("disputed.jsonl").read_text().splitlines()] == ["p3"]


@given(st.lists(st.sampled_from([0, 1, UNSURE]), min_size=1, max_size=7))
def test_a_majority_is_more_than_half(votes: list[int]) -> None:
    won = [one for one in (0, 1) if votes.count(one) > len(votes) / 2]
    assert majority(votes) == (won[0] if won else UNSURE)


@given(data=st.data())
def test_agreement_is_the_mean_over_reviewers_of_the_share_of_pairs(data) -> None:
    pairs = [("q", f"p{i}") for i in range(8)]
    said = {pair: data.draw(st.sampled_from([0, 1, UNSURE])) for pair in pairs}
    answers = [AnnotatorAnswer("a", pair, one, "ann", "") for pair, one in said.items()]
    reviews, shares = [], []
    for reviewer in range(data.draw(st.integers(0, 3))):
        seen = data.draw(st.lists(st.sampled_from(pairs), min_size=1, unique=True))
        given_ = {pair: data.draw(st.sampled_from([0, 1, UNSURE])) for pair in seen}
        reviews += [AnnotatorAnswer("a", pair, one, f"reviewer{reviewer}", "") for pair, one in given_.items()]
        shares.append(sum(said[pair] == one for pair, one in given_.items()) / len(seen))
    found = agreements(["a", "untouched"], answers, reviews)
    assert list(found) == ["a"]
    assert found["a"]["agreement"] == (pytest.approx(float(np.mean(shares))) if shares else None)
    assert found["a"]["reviewers"] == len(shares)
    if shares and np.mean(shares) < 0.93 - 1e-9:
        with pytest.raises(InputError, match=r"less than 93\.0% of 1 package\(s\): a "):
            refuse_below(found, 0.93, "here")
    elif not shares or np.mean(shares) > 0.93 + 1e-9:
        refuse_below(found, 0.93, "here")


class CountedReviews(list[AnnotatorAnswer]):
    """Reviews that count how often they are read."""

    read = 0

    def __iter__(self) -> Iterator[AnnotatorAnswer]:
        self.read += 1
        return super().__iter__()


def test_reviews_are_read_once_however_many_packages_there_are() -> None:
    names = [f"package-{number}" for number in range(9)]
    answers = [AnnotatorAnswer(name, ("q", name), 1, "ann", "") for name in names]
    reviews = CountedReviews(AnnotatorAnswer(name, ("q", name), 1, person, "") for name in names[:5] for person in ("bo", "cy"))
    found = agreements(names, answers, reviews)
    assert [of["reviewed"] for of in found.values()] == [1] * 5 + [0] * 4
    assert reviews.read == 1


def test_a_package_with_which_reviewers_disagree_is_refused_by_name(annotation: Artifact, tmp_path: Path) -> None:
    answers_of(annotation, tmp_path / "judged", "ann", perfect)
    answers_of(annotation, tmp_path / "reviews", "cy", perfect, "review-")
    answers_of(annotation, tmp_path / "reviews", "di", perfect, "review-")
    agreed = adjudicate(settings(annotation, reviews=tmp_path / "reviews"))
    assert agreed.summary["packages"]["package-00000"] == {"pairs": 4, "annotators": 1, "reviewers": 2, "reviewed": 2, "agreement": 1.0}
    answers_of(annotation, tmp_path / "other", "cy", perfect, "review-")
    answers_of(annotation, tmp_path / "other", "di", lambda q, p: 1 - perfect(q, p), "review-")
    with pytest.raises(InputError, match=r"less than 93\.0% of 2 package\(s\): package-00000 50\.0%, package-00001 50\.0%"):
        adjudicate(settings(annotation, "refused", reviews=tmp_path / "other"))
    assert not (tmp_path / "refused" / "manifest.json").exists()
    adjudicate(settings(annotation, "allowed", reviews=tmp_path / "other", agreement=0.5))


def slow_decisions(pairs, votes, final, threshold):
    """Each pair's relevance and source, one after another."""
    found = {}
    for row in pairs:
        pair = row["query_id"], row["passage_id"]
        if row["same_text_as"] is not None:
            continue
        given_ = [final[pair][0]] if pair in final else votes.get(pair, [])
        yes, no = given_.count(1), given_.count(0)
        if 2 * yes > len(given_):
            found[pair] = 1, "human"
        elif 2 * no > len(given_):
            found[pair] = 0, "human"
        elif not given_ and threshold is not None and row["judged"] is None and row["score"] > threshold:
            found[pair] = 1, "model"
    asked = {(row["query_id"], row["passage_id"]): row for row in pairs if row["same_text_as"] is None}
    for row in pairs:
        if row["same_text_as"] is not None:
            pair, of = (row["query_id"], row["passage_id"]), (row["query_id"], row["same_text_as"])
            if of in found:
                found[pair] = found[of]
            elif of not in asked or (asked[of]["judged"] or 0) >= 1:
                found[pair] = 1, "gold"
    return found


def slow_qrels(qrels, decisions):
    """The judgements after, one decision after another: {pair: (relevance, source)}."""
    after = {(q, p): (grade, "gold") for q, p, grade in qrels}
    for pair, (relevance, source) in decisions.items():
        if pair not in after or (source == "human" and (after[pair][0] >= 1) != (relevance == 1)):
            after[pair] = relevance, source
    return after


@given(data=st.data())
def test_judgements_are_those_of_a_slow_reading(data) -> None:
    ids = [(f"q{q}", f"p{p}") for q in range(3) for p in range(5)]
    old = data.draw(st.lists(st.sampled_from(ids), min_size=1, unique=True))
    qrels = [(*pair, data.draw(st.integers(-1, 3))) for pair in old]
    queries = {q for q, _, _ in qrels}
    grades = {(q, p): grade for q, p, grade in qrels}
    chosen = sorted(data.draw(st.lists(st.sampled_from([pair for pair in ids if pair[0] in queries]), unique=True)))
    pairs, asked = [], []
    for pair in chosen:
        like = None
        if grades.get(pair, 0) < 1 and data.draw(st.integers(0, 3)) == 0:
            positives = [p for q, p, grade in qrels if q == pair[0] and grade >= 1 and ((q, p) in asked or (q, p) not in chosen)]
            like = data.draw(st.sampled_from([None, *positives, *(p for q, p in asked if q == pair[0])]))
        asked += [pair] if like is None else []
        score = data.draw(st.sampled_from([0.1, 0.5, 0.7]))
        row = {"query_id": pair[0], "passage_id": pair[1], "score": score, "judged": grades.get(pair), "same_text_as": like}
        pairs.append(row)
    votes = {pair: data.draw(st.lists(st.sampled_from([0, 1, UNSURE]), max_size=3)) for pair in asked}
    votes = {pair: of for pair, of in votes.items() if of}
    final = {pair: (data.draw(st.integers(0, 1)), "") for pair in asked if data.draw(st.integers(0, 4)) == 0}
    threshold = data.draw(st.sampled_from([None, 0.5]))
    schema = pa.schema([("query_id", pa.string()), ("passage_id", pa.string()), ("score", pa.float64()), ("judged", pa.int32())])
    table = pa.Table.from_pylist(pairs, schema.append(pa.field("same_text_as", pa.string())))
    answers = [AnnotatorAnswer("a", pair, one, f"person{i}", "") for pair, of in votes.items() for i, one in enumerate(of)]
    places = {pair: place for place, pair in enumerate(chosen)}
    decided: Decided = decide(table, answers, final, threshold, places)
    columns = dict(zip(("query_id", "passage_id", "relevance"), map(list, zip(*qrels, strict=True)), strict=True))
    after = applied(pa.table(columns), table, decided).to_pylist()
    expected = slow_qrels(qrels, slow_decisions(pairs, votes, final, threshold))
    assert {(row["query_id"], row["passage_id"]): (row["relevance"], row["source"]) for row in after} == expected
    assert len(after) == len(expected)
    assert {(row["query_id"], row["passage_id"]): row["before"] for row in after} == {pair: grades.get(pair) for pair in expected}
    assert [row["query_id"] for row in after] == sorted((row["query_id"] for row in after), key=[q for q, _, _ in qrels].index)


def test_metrics_before_and_after_are_those_of_ir_measures(annotation: Artifact, tmp_path: Path) -> None:
    answers_of(annotation, tmp_path / "judged", "ann", perfect)
    made = adjudicate(settings(annotation, run=[f"one={tmp_path / 'run0' / 'run'}", f"two={tmp_path / 'run1' / 'run'}"]))
    after = [(q, p, relevance) for (q, p), (relevance, _) in rows_of(made).items()]
    for name, run in (("one", ONE), ("two", TWO)):
        hits = [ir_measures.ScoredDoc(q, p, score) for q, found in run.items() for p, score in found]
        for key, qrels in (("before", QRELS), ("after", after)):
            judged = [ir_measures.Qrel(*row) for row in qrels]
            expected = ir_measures.calc_aggregate([RR @ 10, Success @ 1, Success @ 50], judged, hits)
            assert made.summary["runs"][name][key] == pytest.approx({str(measure): value for measure, value in expected.items()})
    assert made.summary["runs"]["one"]["before"] != made.summary["runs"]["one"]["after"]
    chart = made.file("before-and-after.svg").read_text()
    assert "one, RR@10" in chart
    assert made.file("report.md").read_text().count("| one |") == 3
    again = adjudicate(settings(annotation, "again", run=[f"one={tmp_path / 'run0' / 'run'}", f"two={tmp_path / 'run1' / 'run'}"]))
    assert [(file.path, file.sha256) for file in again.files] == [(file.path, file.sha256) for file in made.files]


BAD = {
    "is not a line of JSON": lambda lines: [lines[0], "{oops"],
    "is not a line of JSON; give the file as it was downloaded": lambda lines: [lines[0], "[" * 100_000],
    "is not an object of JSON": lambda lines: [lines[0], "[1]"],
    "names no package": lambda lines: lines[1:],
    "has answers for another package": lambda lines: [lines[0].replace('"fingerprint": "', '"fingerprint": "0'), *lines[1:]],
    "relevance is 2": lambda lines: [lines[0], lines[1].replace('"relevance": 1', '"relevance": 2')],
    "relevance is True": lambda lines: [lines[0], lines[1].replace('"relevance": 1', '"relevance": true')],
    "relevance is 'missing'": lambda lines: [lines[0], lines[1].replace('"relevance"', '"relevant"')],
    "has no annotator": lambda lines: [lines[0], lines[1].replace('"ann"', '""')],
    "names no query_id and passage_id": lambda lines: [lines[0], lines[1].replace('"query_id": "q"', '"query_id": 3')],
    "judges query 'q' and passage 'elsewhere', which package-00000 does not have": lambda lines: [
        lines[0],
        lines[1].replace('"passage_id": "p4"', '"passage_id": "elsewhere"'),
        *lines[2:],
    ],
    "a second answer of 'ann' for query 'q' and passage 'p4'": lambda lines: [*lines[:2], lines[1]],
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_line_is_named_by_file_and_line(annotation: Artifact, tmp_path: Path, message: str) -> None:
    file, *_ = answers_of(annotation, tmp_path / "judged", "ann", lambda q, p: 1)
    assert '"passage_id": "p4"' in file.read_text().splitlines()[1]
    lines = BAD[message](file.read_text().splitlines())
    file.write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(InputError) as caught:
        adjudicate(settings(annotation))
    line = str(caught.value)
    assert message in line
    assert "\n" not in line
    number = 1 if "package (" in line or "no package" in message else 3 if "second" in message else 2
    assert line.startswith(f"{file}:{number}: ")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_file_that_was_cut_is_refused(annotation: Artifact, tmp_path: Path) -> None:
    file, *_ = answers_of(annotation, tmp_path / "judged", "ann", lambda q, p: 1)
    lines = file.read_text().splitlines()
    file.write_text("".join(f"{line}\n" for line in lines[:-1]))
    with pytest.raises(InputError, match=rf"says that it has {len(lines) - 1} answers, and has {len(lines) - 2}"):
        adjudicate(settings(annotation))


def test_other_bad_input_is_one_line(annotation: Artifact, tmp_path: Path) -> None:
    (file, *_) = answers_of(annotation, tmp_path / "judged", "ann", perfect)
    (review, *_) = answers_of(annotation, tmp_path / "reviews", "ann", perfect, "review-")
    with pytest.raises(InputError, match=r"has answers for the review of package-00000"):
        adjudicate(settings(annotation, judgements=review))
    with pytest.raises(InputError, match=r"has answers for package-00000, not for its review"):
        adjudicate(settings(annotation, reviews=file))
    with pytest.raises(InputError, match=r"'ann' reviews package-00000 and judged it"):
        adjudicate(settings(annotation, reviews=review))
    with pytest.raises(InputError, match=r"reviews query .* which nobody judged"):
        adjudicate(settings(annotation, judgements=tmp_path / "judged" / "package-00001-ann.jsonl", reviews=review))
    with pytest.raises(InputError, match=r"nothing-here: no such file or folder"):
        adjudicate(settings(annotation, judgements=tmp_path / "nothing-here"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"has no .jsonl file"):
        adjudicate(settings(annotation, judgements=tmp_path / "empty"))
    with pytest.raises(InputError, match=r"has no probabilities for a threshold"):
        adjudicate(settings(annotation, threshold=0.5))
    with pytest.raises(InputError, match=r"nothing to judge by"):
        AdjudicateSettings(annotation=annotation, qrels=tmp_path / "run0" / "qrels", output=tmp_path / "x")
    other = tmp_path / "final.jsonl"
    other.write_text('{"query_id": "q", "passage_id": "p9", "relevance": 1}\n')
    with pytest.raises(InputError, match=r"final.jsonl:1: decides query 'q' and passage 'p9', which the annotation does not have"):
        adjudicate(settings(annotation, final=other))
    other.write_text('{"query_id": "q", "passage_id": "p2", "relevance": 0}\n')
    with pytest.raises(InputError, match=r"final.jsonl:1: decides query 'q' and passage 'p2', which has the text of passage 'p0'"):
        adjudicate(settings(annotation, "repeat", final=other))
    assert not (tmp_path / "repeat" / "manifest.json").exists()
    with tempfile.TemporaryDirectory() as folder:
        annotate_settings(Path(folder), TEXTS, [("q", "p1", 1)], (ONE, TWO))
        with pytest.raises(InputError, match=r"are not the judgements that the annotation was made with"):
            adjudicate(settings(annotation, qrels=Path(folder) / "run0" / "qrels"))


def test_plan_foresees_the_judgements(annotation: Artifact, tmp_path: Path) -> None:
    asked = settings(annotation, judgements=tmp_path / "later.jsonl", run=tmp_path / "run0" / "run")
    found = asked.forecast(Known())
    assert found.makes[asked.output].rows == 4
    assert found.work == {"hits": 2.0 * 6}
