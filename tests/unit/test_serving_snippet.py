"""Snippets: they fit, are part of the text, and mark the question's words as BM25 sees them; and the table of hits fits its width."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydense.cli.hit_table import hit_table
from raydense.retrieval.words import Words
from raydense.serving.hits import Hit, HitList
from raydense.serving.snippet import Marker, clipped, columns, printable

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=300) | st.lists(
    st.sampled_from(["the", "fox", "foxes", "running", "red", "狐狸", "在冬天", "\x1b[31m", "x" * 40, "é", "한국어"]), max_size=60
).map(" ".join)


def marked(question: str, text: str, width: int = 10_000) -> list[str]:
    return [part for part, mark in Marker(question).snippet(text, width) if mark]


def test_words_are_marked_by_their_stems_and_stop_words_are_not() -> None:
    assert marked("who runs with the foxes", "The fox was running; THE Runs of a foxy man") == ["fox", "running", "Runs"]
    assert marked("the one is", "this is the one") == ["one"]


def test_a_run_of_chinese_is_marked_by_pairs() -> None:
    assert marked("红狐狸", "一只红狐狸在冬天, 狐") == ["红狐狸"]
    assert marked("狐", "狐 在") == ["狐"]


def test_words_with_marks_and_runs_without_blanks_are_marked() -> None:
    assert marked("हिन्दी खोज", "भाषा हिन्दी में खोज") == ["हिन्दी", "खोज"]
    assert marked("na\u00efve", "a nai\u0308ve man") == ["nai\u0308ve"]
    assert marked("ไทย", "ภาษาไทยนี้") == ["ไทย"]


def test_the_window_is_where_most_words_are() -> None:
    text = "fox " + "word " * 100 + "a red fox in winter " + "word " * 100
    parts = Marker("red fox winter").snippet(text, 60)
    whole = "".join(part for part, _ in parts)
    assert re.fullmatch(r"…[\w ]*a red fox in winter[\w ]*…", whole), whole
    assert len(whole) > 45
    assert Marker("fox").snippet(text, 20)[0] == ("fox", True)


@given(TEXT, TEXT, st.integers(1, 120))
def test_a_snippet_fits_and_is_part_of_the_text(question: str, text: str, width: int) -> None:
    parts = Marker(question).snippet(text, width)
    whole, line = "".join(part for part, _ in parts), printable(text)
    assert all(char.isprintable() for char in whole)
    assert columns(whole) <= max(width, 3)
    assert whole.removeprefix("…").removesuffix("…") in line or whole in line
    vocabulary = Words("english", "en").vocabulary()
    wanted = set(vocabulary.split([question.encode(errors="replace")])[0].tolist())
    for part, mark in parts:
        found = set(vocabulary.split([part.encode(errors="replace")])[0].tolist())
        assert found & wanted or not mark, "a marked word is none of the question"


@given(TEXT, st.integers(1, 60))
def test_a_clipped_text_fits(text: str, width: int) -> None:
    line = printable(text)
    kept = clipped(line, width)
    assert columns(kept) <= width
    assert kept == line or (kept.endswith("…") and line.startswith(kept[:-1]))


HITS = [
    Hit(1, "p7", 12.5, "On the Origin of Species", "Darwin wrote the origin of species in 1859. " * 9, {"words": 1, "dense": 3}, True),
    Hit(2, "p9", 0.25, "物种起源的历史和意义" * 5, "origin \x1b[2J <b>species</b>", {"dense": 1}),
]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_a_table_fits_the_terminal(width: int) -> None:
    plain = hit_table(HitList("who wrote the origin of species", HITS), width, bold=False)
    lines = plain.splitlines()
    assert len(lines) == 3
    assert all(columns(line) <= width for line in lines)
    assert [line.split()[:2] for line in lines] == [["rank", "score"], ["1", "12.5000*"], ["2", "0.2500"]]
    bold = hit_table(HitList("who wrote the origin of species", HITS), width, bold=True)
    assert "\x1b[1mwrote\x1b[0m" in bold
    assert "\x1b[1morigin\x1b[0m" in bold
    assert bold.replace("\x1b[1m", "").replace("\x1b[0m", "") == plain
    assert "\x1b" not in plain, "what a text holds is a command to the terminal"


def test_a_table_without_texts_or_hits() -> None:
    assert hit_table(HitList("q", [Hit(1, "p7", 1.0)]), 80, False).split() == ["rank", "score", "id", "1", "1.0000", "p7"]
    assert hit_table(HitList("q", []), 80, False) == "no passage found"


def test_bold_is_for_terminals_without_no_color(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    hits = HitList("species", HITS)
    assert "\x1b" not in hit_table(hits, 80)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert "\x1b[1m" in hit_table(hits, 80)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in hit_table(hits, 80)


def test_a_list_of_hits_is_a_sequence_and_a_table_in_a_notebook() -> None:
    hits = HitList("origin of <species>", HITS)
    assert (len(hits), hits[0], hits[-1], list(hits), hits[:1]) == (2, HITS[0], HITS[1], HITS, HitList("origin of <species>", HITS[:1]))
    page = hits._repr_html_()
    assert page.count("<tr>") == 3
    assert "&lt;species&gt;" in page
    assert "<mark>origin</mark>" in page
    assert "<b>species" not in page.replace("<b>On", "")
    assert "words 1, dense 3" in page
    assert "<th>found</th>" not in HitList("q", [Hit(1, "p", 1.0, found={"ix": 1})])._repr_html_()
    assert "p7 On the Origin of Species" in repr(hits)
    assert json.dumps(hits[0].__dict__)
