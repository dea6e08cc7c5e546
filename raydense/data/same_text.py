"""When two questions have the same text: whatever their case, their white space, and the width of their characters."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def normalised(texts: pa.Array) -> pa.Array:
    """The texts without what two spellings of one question differ in: Unicode's NFKC (full and half width), lower case, single blanks."""
    lower = pc.utf8_lower(pc.utf8_normalize(texts, form="NFKC"))
    words = pc.utf8_split_whitespace(pc.utf8_trim_whitespace(pc.utf8_normalize(lower, form="NFKC")))
    return pc.binary_join(words, " ")
