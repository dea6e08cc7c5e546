"""The kinds of errors, and the rule of each: why a passage was found for a query that it does not answer (Qiu et al. 2022, section 3.6, Table 9).

The rules are asked in the order of `RULES`, and the first that fires names the kind. First comes what is no error of the retriever: the judgements or the
query are wrong. Then what is sure to be seen in two texts of one topic, a number; then whether the main term is there at all; then rules for passages
that have it; then what is left.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations

from raydense.construction.terms import Term, stopword_places
from raydense.data.cjk import CJK

OTHERS = "others"
PAPER = {
    "false negative": 0.148,
    "misspelt query": 0.016,
    "numerical mismatch": 0.05,
    "entity mismatch": 0.39,
    "syntax mismatch": 0.01,
    "modifier mismatch": 0.094,
    "term over-sensitivity": 0.21,
    OTHERS: 0.082,
}
"""The proportions of Table 9, of 500 pairs that people read."""

_MOST = 0.5  # of the idf of a query's terms
_MAIN = 0.8  # of the idf of its rarest term: what a term of about that rarity has
_NEAR = 30  # characters between two terms of a query that a word of direction joins
_WINDOW = 60  # and between two of a passage that stand in an order
_NUMBER = re.compile(
    r"(?<![A-Za-z0-9.])(?<![A-Za-z]-)\d+(?:,\d{3})*(?:\.\d+)?(?!\d|-[A-Za-z])"
)  # those of names, as B12, IL-2 and 2-photon, are terms
_YEARS = range(1000, 2100)
_DIRECTION = re.compile(r"\b(?:to|into|onto|than|before|after|over|causes?)\b|[到去至转换比给向回飞前后]", re.IGNORECASE)
_MODIFIERS = (  # what excludes each other; forms of one are between bars
    ("before", "after", "during"),
    ("morning|mornings", "afternoon", "evening|evenings", "night|nights"),
    ("man|men|male|males", "woman|women|female|females"),
    ("infant|infants|baby|babies|newborn|newborns", "child|children", "adult|adults", "elderly"),
    ("acute", "chronic"),
    ("left", "right"),
    ("high|higher", "low|lower"),
    ("early|earlier", "late|later"),
    ("primary", "secondary"),
    ("increase|increases|increased|increasing", "decrease|decreases|decreased|decreasing|reduce|reduces|reduced"),
    ("饭前|餐前", "饭后|餐后"),
    ("之前|以前", "之后|以后"),
    ("早上|早晨|上午", "中午", "下午", "晚上|夜里|夜间"),
    ("男", "女"),
    ("婴儿|宝宝", "儿童|小孩|孩子", "成人|大人", "老人"),
    ("急性", "慢性"),
    ("左", "右"),
    ("免费", "收费|付费"),
    ("国内", "国外"),
    ("最大", "最小"),
    ("增加|升高", "减少|降低"),
)


@dataclass(frozen=True)
class QueryTerms:
    """A query with its terms, the idf of each word, which are rare in the corpus, and which look misspelt, with what they may have been."""

    text: str
    terms: list[Term]
    idf: dict[str, float]
    rare: frozenset[str]
    corrected: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PassageTerms:
    """A passage as models read it, with its terms; whether its text is that of a positive, and a teacher's probability, if known."""

    text: str
    terms: list[Term]
    like_positive: bool = False
    probability: float | None = None


@dataclass(frozen=True)
class Pair:
    """A query and a passage that was found for it; a teacher's probability above `s_pos` makes a possible false negative."""

    query: QueryTerms
    passage: PassageTerms
    s_pos: float = 0.9

    @cached_property
    def words(self) -> frozenset[str]:
        """The words of the passage."""
        return frozenset(term.word for term in self.passage.terms)

    @cached_property
    def present(self) -> list[Term]:
        """The query's terms that the passage has."""
        return [term for term in self.query.terms if term.word in self.words]

    @cached_property
    def missing(self) -> list[Term]:
        """The query's terms that the passage lacks; a pair with a character of another pair that it has, or of a stop word, is between two words."""
        covered = {at for term in self.present for at in range(term.start, term.end)} | stopword_places(self.query.text)
        return [
            term
            for term in self.query.terms
            if term.word not in self.words and not (term.paired and any(at in covered for at in range(term.start, term.end)))
        ]

    @cached_property
    def rare_missing(self) -> list[Term]:
        """Those of the missing terms that are rare in the corpus."""
        return [term for term in self.missing if term.word in self.query.rare]

    @cached_property
    def shared(self) -> float:
        """The share of the idf of the query's words, present or missing, that those present have."""
        have, lack = (sum(self.query.idf[word] for word in {term.word for term in terms}) for terms in (self.present, self.missing))
        return have / (have + lack) if have + lack else 0.0

    @cached_property
    def on_topic(self) -> bool:
        """Whether, but for numbers, the passage has half of the query's idf or more, and no entity is another."""
        words = [term for term in self.query.terms if not self.query.text[term.start : term.end].isdecimal()]
        rest = replace(self, query=replace(self.query, terms=words))
        return not words or (rest.shared >= _MOST and entity_mismatch(rest) is None)


Rule = Callable[[Pair], str | None]
"""The evidence if it fires, else None."""


def false_negative(pair: Pair) -> str | None:
    """The passage is right, and the judgements do not know: it has the text of a positive, or a re-ranker is sure of it."""
    if pair.passage.like_positive:
        return "has the text of a positive"
    probability = pair.passage.probability
    return f"the teacher gives it {probability:.3f}" if probability is not None and probability > pair.s_pos else None


def misspelt_query(pair: Pair) -> str | None:
    """A term of the query is in no passage, one edit away from a frequent one, and this passage lacks both: the retriever did not see what was meant."""
    wrong = [(term, meant) for term in pair.query.terms if (meant := pair.query.corrected.get(term.word)) and meant not in pair.words]
    return ", ".join(dict.fromkeys(f"{_text(pair.query, term)} for {meant}" for term, meant in wrong)) or None


def numerical_mismatch(pair: Pair) -> str | None:
    """The passage is on the topic, but lacks a number of the query while it has another: years against years, other numbers against others."""
    if not pair.on_topic:
        return None
    asked, found = numbers_of(pair.query.text), numbers_of(pair.passage.text)
    for number in asked:
        others = [other for other in found if _is_year(other) == _is_year(number)]
        if others and number not in found:
            return f"{number}, not {others[0]}"
    return None


def entity_mismatch(pair: Pair) -> str | None:
    """The passage lacks one of the query's rarest terms, or lacks rare ones and has not even half of the query's idf: it is about something else."""
    lacking = pair.rare_missing
    if not lacking:
        return None
    most = max(pair.query.idf[term.word] for term in [*pair.present, *pair.missing])
    if pair.shared >= _MOST and all(pair.query.idf[term.word] < _MAIN * most for term in lacking):
        return None
    return f"lacks {', '.join(merged(pair.query.text, lacking))}"


def syntax_mismatch(pair: Pair) -> str | None:
    """All rare terms are there, but two with a word of direction between them in the query stand only in the other order in the passage: from B to A."""
    if pair.rare_missing:
        return None
    terms = [term for term in pair.query.terms if term.word in pair.words and term.word in pair.query.rare]
    for a, b in combinations(terms, 2):
        between = pair.query.text[a.end : b.start]
        if a.word != b.word and len(between) <= _NEAR and _DIRECTION.search(between):
            forward, backward = _follows(pair.passage, a.word, b.word), _follows(pair.passage, b.word, a.word)
            if backward and not forward:
                return f"{_text(pair.query, b)} before {_text(pair.query, a)}"
    return None


def modifier_mismatch(pair: Pair) -> str | None:
    """The query has a word of time, age, sex, side, ... that the passage lacks, while that has its opposite; other modifiers are left to a person."""
    for group in _MODIFIERS:
        asked = [forms for forms in group if _has(pair.query.text, forms)]
        found = [forms for forms in group if _has(pair.passage.text, forms)]
        if len(asked) == 1 and found and asked[0] not in found:
            return f"{_has(pair.query.text, asked[0])}, not {_has(pair.passage.text, found[0])}"
    return None


def term_over_sensitivity(pair: Pair) -> str | None:
    """The terms that query and passage share hold half of the query's idf or more, and it is wrong all the same: words matched, not meaning."""
    if not pair.present or pair.shared < _MOST:
        return None
    return f"shares {', '.join(merged(pair.query.text, pair.present))} ({100 * pair.shared:.0f}% of the idf)"


RULES: dict[str, Rule] = {
    "false negative": false_negative,
    "misspelt query": misspelt_query,
    "numerical mismatch": numerical_mismatch,
    "entity mismatch": entity_mismatch,
    "syntax mismatch": syntax_mismatch,
    "modifier mismatch": modifier_mismatch,
    "term over-sensitivity": term_over_sensitivity,
}


def kind_of(pair: Pair) -> tuple[str, str]:
    """The kind of an error and its evidence: of the first rule that fires, else `others` with none."""
    for kind, rule in RULES.items():
        if evidence := rule(pair):
            return kind, evidence
    return OTHERS, ""


def numbers_of(text: str) -> list[str]:
    """The numbers of a text in their order, without the commas of thousands and zeros that change nothing; those within names are none."""
    found = _NUMBER.findall(unicodedata.normalize("NFKC", text))
    plain = [number.replace(",", "") for number in found]
    plain = [number.rstrip("0").rstrip(".") if "." in number else number for number in plain]
    return list(dict.fromkeys(number.lstrip("0") or "0" for number in plain))


def _is_year(number: str) -> bool:
    return number.isdecimal() and len(number) == 4 and int(number) in _YEARS


def merged(text: str, terms: list[Term]) -> list[str]:
    """What the terms are in the text, without repetition; pairs of characters that overlap together."""
    found: list[tuple[int, int]] = []
    for term in sorted(terms, key=lambda term: term.start):
        if term.paired and found and term.start <= found[-1][1] and re.match(f"[{CJK}]", text[found[-1][0]]):
            found[-1] = found[-1][0], max(found[-1][1], term.end)
        else:
            found.append((term.start, term.end))
    return list(dict.fromkeys(text[start:end] for start, end in found))


def _text(query: QueryTerms, term: Term) -> str:
    return query.text[term.start : term.end]


def _follows(passage: PassageTerms, first: str, second: str) -> bool:
    """Whether `second` stands after `first` somewhere, near it."""
    ends = [term.end for term in passage.terms if term.word == first]
    starts = [term.start for term in passage.terms if term.word == second]
    return any(0 <= start - end <= _WINDOW for end in ends for start in starts)


def _has(text: str, forms: str) -> str:
    """The first of some forms of a word in a text, or "": words of letters as whole words, in any case."""
    pattern = forms if re.match(f"[{CJK}]", forms) else rf"\b(?:{forms})\b"
    found = re.search(pattern, text, re.IGNORECASE)
    return found.group() if found else ""
