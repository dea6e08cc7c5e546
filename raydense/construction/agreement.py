"""Votes of several people on a pair, and how far reviewers agree with a package (Qiu et al. 2022, section 2.3)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from raydense.construction.annotator_answers import UNSURE, AnnotatorAnswer
from raydense.errors import InputError


def majority(votes: Iterable[int]) -> int:
    """The relevance that more than half of the votes give; -1 where none does, or unsure does."""
    counts = Counter(votes)
    most, count = counts.most_common(1)[0]
    return most if 2 * count > counts.total() else UNSURE


def agreements(packages: list[str], answers: list[AnnotatorAnswer], reviews: list[AnnotatorAnswer]) -> dict[str, dict[str, Any]]:
    """For each package that was judged: its "pairs" with an answer, "annotators", "reviewers", how many "reviewed" pairs, "agreement".

    A reviewer agrees with a pair if the review is the majority of the answers for it; "agreement" is the mean over the reviewers of the
    share of pairs on which they agree, None without reviews. InputError on a reviewer who judged the same package, and on a review of
    a pair that nobody judged.
    """
    votes: dict[tuple[str, str], list[int]] = defaultdict(list)
    people: dict[str, set[str]] = defaultdict(set)
    judged: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for answer in answers:
        votes[answer.pair].append(answer.relevance)
        people[answer.package].add(answer.annotator)
        judged[answer.package].add(answer.pair)
    agreed: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    reviewed: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for review in reviews:
        if review.annotator in people[review.package]:
            raise InputError(f"{review.annotator!r} reviews {review.package} and judged it", review.where, "let another person review it")
        if review.pair not in votes:
            what = f"reviews query {review.pair[0]!r} and passage {review.pair[1]!r}, which nobody judged"
            raise InputError(what, review.where, f"give the judgements of all of {review.package}")
        agreed[review.package][review.annotator].append(review.relevance == majority(votes[review.pair]))
        reviewed[review.package].add(review.pair)
    found = {}
    for name in packages:
        if judged[name]:
            shares = [sum(each) / len(each) for each in agreed[name].values()]
            found[name] = {
                "pairs": len(judged[name]),
                "annotators": len(people[name]),
                "reviewers": len(shares),
                "reviewed": len(reviewed[name]),
                "agreement": sum(shares) / len(shares) if shares else None,
            }
    return found


def refuse_below(agreed: dict[str, dict[str, Any]], least: float, where: object) -> None:
    """InputError that names the packages with which reviewers agree less than `least`."""
    low = [f"{name} {of['agreement']:.1%}" for name, of in agreed.items() if of["agreement"] is not None and of["agreement"] < least]
    if low:
        what = f"reviewers agree with less than {least:.1%} of {len(low)} package(s): {', '.join(low)}"
        raise InputError(what, where, "ask the annotators to revise them, and give the new files in place of the old ones")
