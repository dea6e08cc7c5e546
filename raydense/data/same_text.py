"""When two questions have the same text: whatever their case, their white space, blanks before punctuation, and the width of their characters."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

_BEFORE_PUNCTUATION = r" ([\p{Po}\p{Pe}\p{Pf}])"  # of Unicode's classes other, close and final quote; an opening one may follow a blank


def normalised(texts: pa.Array) -> pa.Array:
    """The texts without what two spellings of one question differ in: Unicode's NFKC (full and half width), lower case, single blanks,
    none before a question mark or other closing punctuation, as tokenised questions have one.
    """
    lower = pc.utf8_lower(pc.utf8_normalize(texts, form="NFKC"))
    words = pc.utf8_split_whitespace(pc.utf8_trim_whitespace(pc.utf8_normalize(lower, form="NFKC")))
    return pc.replace_substring_regex(pc.binary_join(words, " "), _BEFORE_PUNCTUATION, r"\1")
