"""perturb(): what may change of a query and what may not, by each kind of noise, and that a draw is a query's own."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from raydense.data.perturbing import KINDS, noisy, perturb
from raydense.data.settings import PerturbSettings
from raydense.data.tables import read_table
from raydense.data.typos import keys_around, neighbours, terms_of, typo
from raydense.errors import InputError
from raydense.storage import Artifact
from tests.mining_world import write_table

RATES = st.floats(0, 1)
TEXTS = st.text(st.sampled_from("abcXYZ019  \t?-é淘宝修改实名认证かガ한"), max_size=30) | st.text(max_size=30)
KEYS = st.text(max_size=5)
KIND = st.sampled_from(list(KINDS))


@given(TEXTS, KIND, RATES, KEYS)
def test_a_query_never_becomes_blank(text, kind, rate, key):
    assume(text.strip())
    found, share = noisy(text, kind, rate, key)
    assert found.strip()
    assert 0 <= share <= 1


@given(TEXTS, KIND, KEYS)
def test_a_rate_of_0_changes_nothing(text, kind, key):
    assert noisy(text, kind, 0.0, key) == (text, 0.0)


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=20, unique=True), RATES, RATES, KEYS)
def test_a_higher_rate_adds_to_a_lower_one(letters, one, other, key):
    low, high = sorted((one, other))
    words = [letter * 3 for letter in letters]
    kept_low, kept_high = (noisy(" ".join(words), "drop", rate, key)[0].split() for rate in (low, high))
    assert [word for word in kept_low if word in kept_high] == kept_high
    moved_low, moved_high = (noisy(" ".join(words), "shuffle", rate, key)[0].split() for rate in (low, high))
    stayed = [[at for at, word in enumerate(found) if word == words[at]] for found in (moved_low, moved_high)]
    assert set(stayed[1]) <= set(stayed[0])


@given(st.text(st.sampled_from("淘宝修改实名认证太阳花怎么养"), min_size=1, max_size=20), RATES, RATES, KEYS)
def test_the_typos_and_swaps_of_a_lower_rate_stay(text, one, other, key):
    low, high = sorted((one, other))
    small, large = (noisy(text, "typo", rate, key)[0] for rate in (low, high))  # of ideographs: each is replaced by one, in place
    assert len(small) == len(large) == len(text)
    assert all(b == a for old, a, b in zip(text, small, large, strict=True) if a != old)
    small, large = (noisy(text, "swap", rate, key)[0] for rate in (low, high))
    assert all(b == a for old, a, b in zip(text, small, large, strict=True) if a != old)


@given(TEXTS, RATES, KEYS)
@example("かガガガ0か", 1.0, "")
def test_shuffle_permutes_terms_and_leaves_white_space(text, rate, key):
    found, _ = noisy(text, "shuffle", rate, key)
    assert Counter(found) == Counter(text)
    assert re.findall(r"\s+", found) == re.findall(r"\s+", text)
    spans = terms_of(text)
    ends = [0, *(end for _, end in spans)]
    between = [text[a:b] for a, b in zip(ends, [*(begin for begin, _ in spans), len(text)], strict=True)]
    assert is_made_of(found, between, Counter(text[a:b] for a, b in spans))


def is_made_of(found: str, between: list[str], terms: Counter[str]) -> bool:
    """Whether these terms, in any order, stand in `found`, and before, between and after them what `between` has."""
    if not found.startswith(between[0]):
        return False
    found, between = found.removeprefix(between[0]), between[1:]
    if not between:
        return not found
    return any(found.startswith(term) and is_made_of(found[len(term) :], between, terms - Counter([term])) for term in terms)


@given(TEXTS, RATES, KEYS)
def test_swap_keeps_the_characters_and_moves_none_further_than_one_place(text, rate, key):
    found, share = noisy(text, "swap", rate, key)
    assert Counter(found) == Counter(text)
    at = swapped = 0
    while at < len(text):
        if found[at] == text[at]:
            at += 1
            continue
        assert (found[at], found[at + 1]) == (text[at + 1], text[at])
        at, swapped = at + 2, swapped + 2
    assert share == pytest.approx(swapped / max(1, sum(map(str.isalnum, text))))


@given(TEXTS, RATES, KEYS)
def test_drop_leaves_some_of_the_terms_in_their_order(text, rate, key):
    terms = [text[a:b] for a, b in terms_of(text)]
    found = iter(terms)
    left, share = noisy(" ".join(terms), "drop", rate, key)
    kept = left.split()
    assert all(any(word == other for other in found) for word in kept)
    if terms:
        assert len(kept) == len(terms) - round(share * len(terms)) >= 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_share_is_the_rate(kind):
    """Also of short queries, of which a tenth of the places is less than one."""
    texts = ["kidney stones", "what causes a rash", "signs of liver failure in small children"]
    shares = [noisy(texts[i % 3], kind, 0.1, f"{i}")[1] for i in range(3_000)]
    assert sum(shares) / len(shares) == pytest.approx(0.1, abs=0.015)  # the standard error is at most 0.004


def test_shuffle_of_all_terms_leaves_none_at_its_place():
    words = ["one", "two", "three", "four", "five", "six"]
    found = {noisy(" ".join(words), "shuffle", 1.0, f"{i}")[0] for i in range(200)}
    assert len(found) > 60  # of the 120 cycles
    assert all(word != words[at] for text in found for at, word in enumerate(text.split()))


def test_a_wrong_key_touches_the_right_one():
    assert sorted(keys_around("g")) == list("bfhtvy")
    assert sorted(keys_around("q")) == list("aw")
    assert sorted(keys_around("5")) == list("46")
    assert keys_around("é") == ""
    assert typo("G", 0.0, 0.0).isupper()
    assert typo("é", 0.0, 0.0) == "éé"
    assert typo("a", 0.9, 0.5) == ""
    assert typo("a", 0.9, 0.5, may_vanish=False) == "aa"


def test_a_wrong_ideograph_stands_next_to_the_right_one_in_gb_2312():
    """Readings by the Xinhua dictionary: tao, bao and yang with their homophones; the last by radical, and by sound."""
    assert [neighbours(c) for c in "淘宝阳"] == ["逃陶", "抱饱", "氧洋"]
    assert neighbours("啊") == "阿"  # the first of all: its one neighbour
    assert neighbours("龘") == "龗龙"  # not in GB 2312
    assert neighbours("か") == "おが"


def written(folder: Path, rows: list[dict], **more: object) -> Artifact:
    write_table(folder / "queries", "queries", [pa.Table.from_pylist(rows)])
    return perturb(PerturbSettings.read({"queries": str(folder / "queries"), "output": str(folder / "out"), **more}))


ROWS = [
    {"query_id": "a", "text": "How to get from Taipei to Ruifang?", "answers": ["by train", "1 hour"]},
    {"query_id": "b", "text": "台北怎么去瑞芳", "answers": []},
    {"query_id": "c", "text": "?", "answers": None},
]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_answers_and_order_stay(tmp_path, kind):
    made = written(tmp_path, ROWS, kind=kind, rate=0.6)
    found = read_table(made.path, "queries").to_pylist()
    assert [(row["query_id"], row["answers"]) for row in found] == [(row["query_id"], row["answers"]) for row in ROWS]
    assert [row["text"] != old["text"] for row, old in zip(found, ROWS, strict=True)] == [True, True, False]
    assert made.kind == "queries"
    assert made.summary["changed"] == 2
    assert made.summary["share"] == pytest.approx(sum(noisy(row["text"], kind, 0.6, f"42:{row['query_id']}")[1] for row in ROWS) / 3)


def test_a_draw_is_of_the_query_alone_and_of_the_seed(tmp_path):
    texts = {}
    for name, rows, seed in (("all", ROWS, 1), ("backwards", ROWS[::-1], 1), ("one", ROWS[:1], 1), ("another", ROWS, 2)):
        (tmp_path / name).mkdir()
        found = read_table(written(tmp_path / name, rows, kind="typo", rate=0.5, seed=seed).path, "queries")
        texts[name] = dict(zip(found["query_id"].to_pylist(), found["text"].to_pylist(), strict=True))
    assert texts["all"] == texts["backwards"]
    assert texts["one"]["a"] == texts["all"]["a"] != texts["another"]["a"]


def test_it_continues_and_refuses_another_rate(tmp_path):
    made = written(tmp_path, ROWS, kind="typo", rate=0.5)
    settings = {"queries": str(tmp_path / "queries"), "output": str(tmp_path / "out"), "kind": "typo"}
    assert perturb(PerturbSettings.read({**settings, "rate": 0.5})).fingerprint == made.fingerprint
    with pytest.raises(InputError, match="rate"):
        perturb(PerturbSettings.read({**settings, "rate": 0.4}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "typo", "rate": 1.5}, r"rate: input should be less than or equal to 1 \(given: 1.5\)"),
        ({"kind": "typo", "rate": -0.1}, r"rate: input should be greater than or equal to 0 \(given: -0.1\)"),
        ({"kind": "noise"}, "kind: input should be 'typo', 'swap', 'shuffle' or 'drop'"),
        ({}, "kind: missing"),
    ],
)
def test_wrong_settings_are_one_line(given, message):
    with pytest.raises(InputError, match=message) as refused:
        PerturbSettings.read({"queries": "q", "output": "o", **given})
    assert "\n" not in str(refused.value)


def test_it_wants_queries(tmp_path):
    write_table(tmp_path / "qrels", "qrels", [pa.table({"query_id": ["a"], "passage_id": ["p"], "relevance": [1]})])
    with pytest.raises(InputError, match="qrels"):
        perturb(PerturbSettings.read({"queries": str(tmp_path / "qrels"), "kind": "drop", "output": str(tmp_path / "out")}))
    assert not (tmp_path / "out").exists()
