"""Which candidates are left out of the hard negatives, as they may be relevant although nobody judged them: by margins, or by answers.

A margin leaves out a candidate whose score is too near to that of its query's positive, or too high. The rules are those of
`mine_hard_negatives` of sentence-transformers and of NV-Retriever (Moreira et al. 2024, section 3.2): TopK-Abs is `max_score`,
TopK-MarginPos is `absolute_margin`, and TopK-PercPos at 95% is `relative_margin` 0.05.
"""

from __future__ import annotations

from typing import Literal

from raydense.settings import BaseSettings, setting

MARGINS = ("max_score", "absolute_margin", "relative_margin")


class Margins(BaseSettings):
    """Which candidates are left out of the hard negatives because of their score; by default none."""

    max_score: float | None = setting(
        None, "leave out negatives with a higher score, of the run that is mined or of the search of a refresh"
    )
    absolute_margin: float | None = setting(
        None,
        "leave out negatives whose score is not this much below that of the query's positive, the lowest of several; "
        "a positive that the run lacks counts as lower than all",
        ge=0,
    )
    relative_margin: float | None = setting(
        None,
        "leave out negatives that score above (1 - this) times the query's positive, the lowest of several: 0.05 keeps those of at most 95% of it",
        ge=0,
        lt=1,
    )

    @property
    def margins(self) -> dict[str, float]:
        """Those that are given."""
        return {name: value for name in MARGINS if (value := getattr(self, name)) is not None}


class WithoutAnswers(BaseSettings):
    """Whether a passage that holds an answer of its question can be a negative."""

    without_answers: Literal["token", "regex"] | None = setting(
        None,
        "leave out negatives whose title or text holds an answer of the query, as the scripts of RocketQA and ANCE do for Natural Questions: by its tokens in "
        "any case, or as a regular expression",
    )
