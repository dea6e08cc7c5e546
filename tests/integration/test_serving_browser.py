"""A person searches on the served page in a real browser: hits, words marked, indexes side by side, links, judgements that come back as qrels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
from browser import browser
from embeddings import write_corpus, write_embeddings
from nodes import free_ports

from raydense.data.importing import import_dataset
from raydense.data.settings import ImportSettings
from raydense.data.tables import read_table
from raydense.inference.query_encoder import query_encoder
from raydense.models.tiny import make_tiny_encoder
from raydense.retrieval.index import index
from raydense.retrieval.search import search
from raydense.retrieval.settings import IndexSettings, SearchSettings
from raydense.serving.running import running
from raydense.serving.settings import ServeSettings
from raydense.storage import fingerprint_of

pytestmark = pytest.mark.usefixtures("ray_cluster")

EVIL = '<img src=x onerror="document.title = 1"><script>document.title = "taken"</script>'
LONG = "A gull rests. " * 60 + "The lighthouse keeper of Skagen wrote it down. " + "The sea is grey. " * 60
TEXTS = [f"The ship number {i} left the harbour at dawn." for i in range(12)] + [LONG, EVIL, "灯塔看守人写信。"]
TITLES = [f"Ship {i}" for i in range(12)] + ["Skagen", "Evil", "灯塔"]


@dataclass(frozen=True)
class World:
    """A server of an index of words and one of vectors under a route, and its corpus."""

    root: Path
    url: str


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("page")
    corpus = write_corpus(root / "corpus", TEXTS, TITLES)
    make_tiny_encoder(TEXTS, root / "model", seed=0)
    vectors = query_encoder(str(root / "model"))(TEXTS)
    write_embeddings(root / "vectors", vectors, corpus=corpus.fingerprint, model=fingerprint_of(root / "model"))
    words = index(
        IndexSettings(kind="bm25", corpus=str(root / "corpus"), bm25={"stemmer": "none", "stopwords": "none"}, output=str(root / "words"))
    )
    dense = index(IndexSettings(kind="faiss", embeddings=str(root / "vectors"), output=str(root / "dense")))
    of = {"index": [f"words={words.path}", f"vectors={dense.path}"], "model": str(root / "model"), "corpus": str(root / "corpus")}
    with running(ServeSettings(**of), "page", "/page", "127.0.0.1", free_ports(1)[0]) as url:
        yield World(root, url)


@pytest.fixture
def page(world: World) -> Iterator:
    """A tab of a new browser profile, which fails the test if the page reports an error or asks another host."""
    with browser() as opened:
        tab, faults = opened.new_page(), []
        tab.on("pageerror", lambda error: faults.append(str(error)))
        tab.on("request", lambda asked: faults.append(asked.url) if not asked.url.startswith((world.url, "blob:")) else None)
        tab.goto(world.url)
        yield tab
        assert not faults


def ask(page, text: str) -> None:
    page.fill("#q", text)
    page.keyboard.press("Enter")
    page.wait_for_selector("#status:text-matches('^(\\\\d+|No) passages? in ')")


def shown(page, at: int = 0) -> list[str]:
    """The passage ids of a column."""
    return page.locator("ol").nth(at).locator("li").evaluate_all("all => all.map((one) => one.dataset.id)")


def test_hits_snippets_and_unfolding(world: World, page) -> None:
    ask(page, "who was the lighthouse keeper")
    first = page.locator("li", has_text="Skagen").first
    assert first.locator("h3").inner_text() == "Skagen"
    assert [mark.inner_text() for mark in first.locator(".text mark").all()] == ["lighthouse", "keeper"]
    folded = first.locator(".text").inner_text()
    assert len(folded) < 400
    first.locator("h3 button").click()
    assert first.locator(".text").inner_text() == LONG
    assert first.locator("h3 button").get_attribute("aria-expanded") == "true"
    first.locator("h3 button").click()
    assert first.locator(".text").inner_text() == folded
    ask(page, "看守人")
    assert page.locator("li").first.locator(".text mark").all_inner_texts() == ["看守人"]


def test_texts_of_passages_are_no_html(world: World, page) -> None:
    ask(page, "document title taken onerror")
    assert EVIL in page.locator("li .text").all_inner_texts()
    assert page.title() == "raydense search"


def test_indexes_apart_and_side_by_side(world: World, page) -> None:
    ask(page, "ship 7 harbour")
    fused = shown(page)
    page.get_by_label("words").check()
    by_words = shown(page)
    page.get_by_label("vectors").check()
    by_vectors = shown(page)
    assert "p14" not in by_words, "no passage of another language has one of the words"
    assert sorted({*by_words, *by_vectors}) == sorted({*fused, *by_words, *by_vectors})
    page.get_by_label("Side by side").check()
    assert page.locator("h2").all_inner_texts() == ["Fused", "words", "vectors"]
    assert [shown(page, at) for at in range(3)] == [fused, by_words, by_vectors]
    alone = page.locator("ol").nth(2).locator("li", has_text="vectors alone").evaluate_all("all => all.map((one) => one.dataset.id)")
    found = requests.post(f"{world.url}/search", json={"query": "ship 7 harbour", "k": 100, "each": True}, timeout=60).json()
    (deep,) = found["each"][0]["results"]
    assert alone == [one for one in by_vectors if one not in {hit["id"] for hit in deep}], "words may have found it below its first ten"
    assert set(alone) < {one for one in by_vectors if one not in by_words}


def test_a_link_holds_the_question_and_the_way_back(world: World, page) -> None:
    ask(page, "ship 3")
    page.get_by_label("words").check()
    asked, wanted = parse_qs(urlsplit(page.url).query), shown(page)
    assert asked == {"q": ["ship 3"], "k": ["10"], "view": ["1"]}
    page.goto(page.url)
    page.wait_for_selector("li")
    assert shown(page) == wanted
    ask(page, "gull")
    page.go_back()
    page.wait_for_selector(f"li[data-id={wanted[0]}]:first-child")
    assert page.input_value("#q") == "ship 3"
    assert shown(page) == wanted


def test_judgements_by_keyboard_come_back_as_qrels(world: World, page, tmp_path: Path) -> None:
    ask(page, "ship 5 harbour")
    first, second = shown(page)[:2]
    page.keyboard.press("Escape")
    for key in ("j", "r", "j", "n", "j", "r", "u"):
        page.keyboard.press(key)
    ask(page, "lighthouse\tkeeper")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("r")
    kept = shown(page)[0]
    page.reload()
    page.wait_for_selector("li")
    assert page.locator("#judged").inner_text() == "3 judged, of 2 queries"
    for name in ("constructor", "__proto__"):  # members of every object
        ask(page, name)
        page.keyboard.press("Escape")
        for key in ("j", "r"):
            page.keyboard.press(key)
    page.reload()
    page.wait_for_selector("li")
    assert page.locator("#judged").inner_text() == "5 judged, of 4 queries"
    for name in ("constructor", "__proto__"):
        ask(page, name)
        page.keyboard.press("Escape")
        for key in ("j", "u"):
            page.keyboard.press(key)
    ask(page, "lighthouse\tkeeper")
    assert page.locator("li").first.get_by_role("button", name="Relevant", exact=True).get_attribute("aria-pressed") == "true"
    (tmp_path / "judged").mkdir()
    for button in ("qrels", "queries"):
        with page.expect_download() as caught:
            page.click(f"#{button}")
        caught.value.save_as(tmp_path / "judged" / caught.value.suggested_filename)
    import_dataset(
        ImportSettings(format="msmarco", input=str(tmp_path / "judged"), corpus=str(world.root / "corpus"), output=str(tmp_path / "data"))
    )
    texts = {row["query_id"]: row["text"] for row in read_table(tmp_path / "data" / "queries", "queries").to_pylist()}
    qrels = read_table(tmp_path / "data" / "qrels" / "judged", "qrels").to_pylist()
    found = {(texts[row["query_id"]], row["passage_id"], row["relevance"]) for row in qrels}
    assert found == {("ship 5 harbour", first, 1), ("ship 5 harbour", second, 0), ("lighthouse keeper", kept, 1)}
    search(SearchSettings(index=str(world.root / "words"), queries=str(tmp_path / "data" / "queries"), k=3, output=str(tmp_path / "run")))


def test_an_error_is_one_line(world: World, page) -> None:
    page.route("**/search", lambda route: route.fulfill(status=503, json={"error": "no pool answers"}))
    page.fill("#q", "ship")
    page.keyboard.press("Enter")
    page.wait_for_selector("#status.bad")
    assert page.locator("#status").inner_text() == "no pool answers"
    assert page.locator("li").count() == 0


def test_the_page_is_readable_without_a_mouse_in_light_and_dark(world: World, page) -> None:
    unnamed = (
        "all => all.filter((one) => !(one.innerText || one.ariaLabel || (one.labels && one.labels.length))).map((one) => one.outerHTML)"
    )
    for scheme, paper in (("light", "rgb(252, 252, 250)"), ("dark", "rgb(20, 23, 26)")):
        page.emulate_media(color_scheme=scheme)
        ask(page, "ship 2")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
        assert page.locator("button, input, select").evaluate_all(unnamed) == []
    page.keyboard.press("Escape")
    assert page.input_value("#q") == "ship 2"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "q"
