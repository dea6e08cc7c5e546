"""Misspelt terms of queries: a term that no passage of the corpus has, and that is one edit away from a frequent one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from string import ascii_lowercase

from raydense.construction.terms import Frequencies, Term, stopword_places
from raydense.data.typos import neighbours

_SHORTEST = 4  # letters: shorter words are one edit away from too many others
_LONGEST = 40  # what is longer is no word, and has too many edits to hold
_REACH = 3  # characters before and after one in the order of pinyin: further ones sound less alike


def corrections(queries: list[tuple[str, list[Term]]], frequencies: Frequencies) -> list[dict[str, str]]:
    """For each query, of its text and its terms, the terms that look misspelt, each with the most frequent term that is one edit away; their words are asked for before.

    An edit of a word leaves out, adds or replaces a letter, or swaps two. Of a pair of Chinese characters it replaces one by a homophone, which must be in no
    pair of the query that the corpus has; a word with digits or with capitals within it, as UreH, is a symbol and has none. Letters are compared in stems, which differ by as much as words do.
    """
    variants = [_variants(text, terms, frequencies.passages) for text, terms in queries]
    frequencies.ask({word for of_query in variants for words in of_query.values() for word in words})
    found = []
    for of_query in variants:
        best = {word: max(words, key=lambda other: (frequencies.passages(other), other)) for word, words in of_query.items() if words}
        found.append({word: other for word, other in best.items() if frequencies.is_frequent(other)})
    return found


def candidates(queries: list[tuple[str, list[Term]]]) -> set[str]:
    """All words that `corrections` may ask for, whatever the corpus has: asked with the queries' own, they are counted in one pass with these."""
    return {word for text, terms in queries for words in _variants(text, terms, lambda _: 0).values() for word in words}


def _variants(text: str, terms: list[Term], passages: Callable[[str], int]) -> dict[str, set[str]]:
    """By term that no passage has what it may have been."""
    known = {at for term in terms if passages(term.word) for at in range(term.start, term.end)} | stopword_places(text)
    found = {}
    for term in terms:
        if passages(term.word):
            continue
        if term.paired:
            free = [at for at in range(term.start, term.end) if at not in known]
            found[term.word] = set(_sounding_alike(term.word, [at - term.start for at in free]))
        elif _SHORTEST <= len(term.word) <= _LONGEST and term.word.isalpha() and text[term.start + 1 : term.end].islower():
            found[term.word] = edits(term.word)
    return found


def _sounding_alike(pair: str, places: Iterable[int]) -> Iterable[str]:
    if len(pair) != 2:
        return
    for at in places:
        for other in neighbours(pair[at], _REACH):
            yield pair[:at] + other + pair[at + 1 :]


def edits(word: str) -> set[str]:
    """All words one edit away: a letter left out, added or replaced, or two neighbours swapped (Damerau 1964)."""
    letters = sorted({*ascii_lowercase, *word})
    cuts = [(word[:at], word[at:]) for at in range(len(word) + 1)]
    found = {a + b[1:] for a, b in cuts if b}
    found |= {a + b[1] + b[0] + b[2:] for a, b in cuts if len(b) > 1}
    found |= {a + letter + b[1:] for a, b in cuts if b for letter in letters}
    found |= {a + letter + b for a, b in cuts for letter in letters}
    return found - {word}
