"""The README of a retriever's folder: how to load it, and how it reads a text."""

from __future__ import annotations

from pathlib import Path

from raydense.models.encoder_config import EncoderConfig

_CARD = """---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags: [sentence-transformers, raydense]
---

# A retriever made with raydense

A text becomes a vector of {dimension} numbers{normalized}. The score of a query and a passage is the inner product of their vectors.

| | queries | passages |
|---|---|---|
| most tokens, special tokens included | {config.query_length} | {config.passage_length} |
| text put before each | {query_prefix} | {passage_prefix} |

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(folder)
scores = model.encode_query(queries) @ model.encode_document(passages).T
```

These are the vectors of `raydense encode`. Plain `encode` reads every text without a prefix, at the length of passages.
"""


def write_card(folder: Path, config: EncoderConfig, dimension: int, notes: list[str]) -> None:
    """Write README.md for a retriever of vectors of `dimension` numbers; `notes` are more paragraphs."""
    card = _CARD.format(
        config=config,
        dimension=dimension,
        normalized=" of length 1" if config.normalize else "",
        query_prefix=_quoted(config.query_prefix),
        passage_prefix=_quoted(config.passage_prefix),
    )
    (folder / "README.md").write_text("\n".join([card, *(f"{note}\n" for note in notes)]), encoding="utf-8")


def _quoted(prefix: str) -> str:
    return f"`{prefix!r}`".replace("|", "\\|") if prefix else "none"
