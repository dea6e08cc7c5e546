"""Margins: a candidate whose score is too near to that of its query's positive, or too high, is left out of the hard negatives.

It may be relevant although nobody judged it. The rules are those of `mine_hard_negatives` of sentence-transformers and of NV-Retriever
(Moreira et al. 2024, section 3.2): TopK-Abs is `max_score`, TopK-MarginPos is `absolute_margin`, and TopK-PercPos at 95% is
`relative_margin` 0.05.
"""

from __future__ import annotations

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


class HardNegatives(BaseSettings):
    """Which negatives of a file that has them by system an import takes, as BEIR's train_msmarco_v3.py chooses (5 of each, margin 3)."""

    per_system: int | None = setting(
        None, "of each system that found negatives at most so many, the first that no earlier system has", ge=1
    )
    margin: float | None = setting(
        None,
        "leave out negatives whose cross-encoder score in the file is not this much below that of the positive, the lowest of several",
        ge=0,
    )
