"""A person judges a package: ten pairs by keyboard in a real browser, with a reload in the middle, downloaded and read back."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from raydense.construction.adjudicate import adjudicate
from raydense.construction.annotate import annotate
from raydense.construction.package import Label, Page, write_packages
from raydense.construction.settings import AdjudicateSettings
from raydense.data.tables import read_table
from raydense.storage import Draft
from tests.annotation_world import annotate_settings
from tests.browser import browser

EVIL = '</script><script>document.title = "taken"</script><img src=x onerror="document.title = 1">'


def pairs(count: int):
    texts = [f"Passage {i}: the red fox sleeps.\nIt is {i} years old." for i in range(count)]
    texts[3] = EVIL
    return pa.table(
        {
            "query_id": [f"q{i // 2}" for i in range(count)],
            "passage_id": [f"p{i}" for i in range(count)],
            "query": [["where does the red fox sleep", "太阳花怎么养"][i // 2 % 2] for i in range(count)],
            "title": ["Foxes"] * count,
            "text": [*texts[:2], "太阳花的养法:太阳花喜温暖", *texts[3:]],
        }
    )


@pytest.fixture
def package(tmp_path: Path) -> Path:
    draft = Draft.open(tmp_path / "pages", "annotation", {"test": "pages"})
    write_packages(draft, [pairs(10)], 10)
    draft.finish(10)
    return tmp_path / "pages" / "package-00000.html"


def start(page, package: Path, name: str = "Ann") -> None:
    page.goto(package.as_uri())
    page.fill("#name", name)
    page.keyboard.press("Enter")


def another(page, name: str) -> None:
    """Go on under another name."""
    page.click("#rename")
    page.fill("#name", name)
    page.keyboard.press("Enter")


def downloaded(page, folder: Path) -> list[dict]:
    with page.expect_download() as caught:
        page.click("#download")
    caught.value.save_as(folder / caught.value.suggested_filename)
    return [json.loads(line) for line in (folder / caught.value.suggested_filename).read_text().splitlines()]


def test_ten_pairs_are_judged_by_keyboard_and_downloaded(package: Path, tmp_path: Path) -> None:
    with browser() as opened:
        page = opened.new_page()
        page.clock.install(time=0)
        page.clock.pause_at(3_600)  # an hour later: it does not go back
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        start(page, package)
        assert page.inner_text("#place") == "1 of 10"
        assert page.eval_on_selector_all("#text mark", "marks => marks.map(m => m.textContent)") == ["red", "fox"]
        for key in "10y?":
            page.clock.run_for(7_000)
            page.keyboard.press(key)
        assert page.title() == "package-00000"  # nothing of the texts is run
        page.keyboard.press("Backspace")
        assert page.inner_text("#text") == EVIL
        assert page.get_attribute("#labels button[aria-pressed=true]", "data-label") == "unsure"
        page.clock.run_for(7_000)
        page.keyboard.press("0")  # changed
        page.reload()
        assert page.inner_text("#place") == "5 of 10"
        assert page.inner_text("#left").startswith("4 answered, ")
        for key in "nnn1":
            page.keyboard.press(key)
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("u")
        page.keyboard.press("1")
        assert page.inner_text("#done") == "10 of 10 pairs have an answer."
        head, *lines = downloaded(page, tmp_path)
    fingerprint = json.loads((package.parent / "package-00000.jsonl").read_text().splitlines()[0])["fingerprint"]
    assert head == {"package": "package-00000", "fingerprint": fingerprint, "annotator": "Ann", "answers": 10}
    assert [line["relevance"] for line in lines] == [1, 0, 1, 0, 0, 0, 0, 1, None, 1]
    assert [(line["query_id"], line["passage_id"]) for line in lines] == [(f"q{i // 2}", f"p{i}") for i in range(10)]
    assert {line["annotator"] for line in lines} == {"Ann"}
    assert [line["seconds"] for line in lines] == [7, 7, 7, 14, 0, 0, 0, 0, 0, 0]
    assert {url for url in asked if not url.startswith("blob:")} == {package.as_uri()}


def test_chinese_words_are_marked_and_answers_of_packages_are_apart(package: Path, tmp_path: Path) -> None:
    other = Draft.open(tmp_path / "others", "annotation", {"test": "others"})
    write_packages(other, [pairs(9)], 10, Page(question="What is wrong?", labels=[Label("e", "entity"), Label("t", "typo")]))
    other.finish(9)
    with browser() as opened:
        context = opened.new_context()
        page = context.new_page()
        start(page, package)
        page.keyboard.press("1")
        page.keyboard.press("1")
        assert page.inner_text("#query") == "太阳花怎么养"
        assert page.eval_on_selector_all("#text mark", "marks => marks.map(m => m.textContent)") == ["太阳花", "太阳花"]
        page.goto((tmp_path / "others" / "package-00000.html").as_uri())
        assert page.is_visible("#start")
        page.fill("#name", "Bo")
        page.keyboard.press("Enter")
        page.keyboard.press("t")
        page.keyboard.press("1")  # no label here
        assert page.inner_text("#place") == "2 of 9"
        _, line = downloaded(page, tmp_path)
        assert (line["label"], line["relevance"], line["annotator"]) == ("typo", None, "Bo")


@pytest.mark.parametrize(
    ("query", "text", "marks"),
    [
        ("iphone手机怎么截图", "使用iPhone手机,怎么?先截图", ["iPhone手机", "怎么", "截图"]),
        ("5月20日怎么过", "怎么过?5月20日,15日,205元", ["怎么过", "5月20"]),
        ("iphone", "使用iPhone手机, xiphone, iphones, iphone5", ["iPhone"]),
        ("ｽﾏﾎの使い方", "新しいｽﾏﾎ", ["ｽﾏﾎ"]),
        ("𠮷野家の場所", "渋谷の𠮷野家", ["𠮷野家"]),
        ("cafe", "cafe, cafe\u0301", ["cafe"]),
    ],
)
def test_words_of_mixed_scripts_are_marked(tmp_path: Path, query: str, text: str, marks: list[str]) -> None:
    row = {"query_id": ["q"], "passage_id": ["p"], "query": [query], "title": [""], "text": [text]}
    draft = Draft.open(tmp_path / "pages", "annotation", {"test": "mixed"})
    write_packages(draft, [pa.table(row)], 1)
    draft.finish(1)
    with browser() as opened:
        page = opened.new_page()
        start(page, tmp_path / "pages" / "package-00000.html")
        assert page.eval_on_selector_all("#text mark", "marks => marks.map(m => m.textContent)") == marks


@pytest.mark.parametrize("stores", [True, False])
def test_each_name_has_its_own_answers(package: Path, tmp_path: Path, stores: bool) -> None:
    """Also where the browser stores nothing, as long as the page is open."""
    with browser() as opened:
        page = opened.new_page()
        if not stores:
            page.add_init_script(
                "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no', 'SecurityError') } })"
            )
        start(page, package)
        for key in "110":
            page.keyboard.press(key)
        another(page, "Bo")
        assert page.inner_text("#place") == "1 of 10"
        assert page.inner_text("#left") == "0 answered"
        page.keyboard.press("0")
        bo = downloaded(page, tmp_path)
        assert [line["annotator"] for line in bo] == ["Bo", "Bo"]
        assert [line["relevance"] for line in bo[1:]] == [0]
        if stores:
            page.reload()
            assert page.inner_text("#rename") == "Bo"
            assert page.inner_text("#place") == "2 of 10"
        another(page, "Ann")
        assert page.inner_text("#place") == "4 of 10"
        page.keyboard.press("1")
        ann = downloaded(page, tmp_path)
        assert {line["annotator"] for line in ann} == {"Ann"}
        assert [line["relevance"] for line in ann[1:]] == [1, 1, 0, 1]
        page.click("#rename")
        page.reload()  # who comes next gives a name first
        assert page.is_visible("#start")


def test_a_key_right_after_the_name_is_an_answer(package: Path) -> None:
    """Before the page is drawn again, where a hidden field would still have the focus."""
    with browser() as opened:
        page = opened.new_page()
        page.goto(package.as_uri())
        page.fill("#name", "Ann")
        focused = page.evaluate("() => { document.getElementById('who').requestSubmit(); return document.activeElement.id }")
        assert focused != "name"


def test_what_is_judged_in_the_browser_is_applied(tmp_path: Path) -> None:
    texts = [f"the red fox number {i} sleeps" for i in range(12)]
    run = {f"q{q}": [(f"p{q * 5 + i}", 5.0 - i) for i in range(5)] for q in range(2)}
    qrels = [("q0", "p1", 1), ("q1", "p5", 1)]
    annotation = annotate(annotate_settings(tmp_path, texts, qrels, [run]))
    with browser() as opened:
        page = opened.new_page()
        start(page, annotation.file("package-00000.html"))
        for key in "10000":
            page.keyboard.press(key)
        page.reload()
        for key in "01?00":
            page.keyboard.press(key)
        downloaded(page, tmp_path / "judged")
        start(page, annotation.file("review-00000.html"), "Bo")
        assert page.inner_text("#place") == "1 of 2"
    given = {"annotation": annotation, "judgements": tmp_path / "judged", "qrels": tmp_path / "run0" / "qrels"}
    made = adjudicate(AdjudicateSettings(output=tmp_path / "adjudicated", **given))
    found = {(row["query_id"], row["passage_id"]): row["relevance"] for row in read_table(made.path, "qrels").to_pylist()}
    assert {pair for pair, relevance in found.items() if relevance} == {("q0", "p0"), ("q1", "p6")}
    assert found["q0", "p1"] == found["q1", "p5"] == 0
    assert ("q1", "p7") not in found  # unsure
    assert made.summary["disputed"] == 1
    assert made.summary["judged"] == 10
