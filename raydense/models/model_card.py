"""The README of a model's folder, a model card of the Hugging Face Hub: what the model is, and how to use it in raydense and elsewhere.

A training appends how the model was trained.
"""

from __future__ import annotations

from pathlib import Path

from raydense.models.encoder_config import EncoderConfig

NAME = "README.md"

_RETRIEVER = """---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags: [sentence-transformers, raydense]
---

# An encoder for passage retrieval, made with raydense

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

These are the vectors of `raydense encode`, which reads a passage as its title, a space and its text. Plain `encode` reads every text without a prefix, at the length of passages.

```sh
raydense encode --model FOLDER --corpus CORPUS --output embeddings
raydense index --kind faiss --embeddings embeddings --output index
raydense search --index index --model FOLDER --queries QUERIES --output run
```
"""

_TWO = """---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags: [sentence-transformers, raydense]
---

# Two encoders for passage retrieval, made with raydense

`query_encoder` reads queries, `passage_encoder` passages; each folder is a model of its own, with a README.md. The score of a query and
a passage is the inner product of their vectors.

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(folder)  # 5 or later
scores = model.encode_query(queries) @ model.encode_document(passages).T
```

```sh
raydense encode --model FOLDER --corpus CORPUS --output embeddings
raydense index --kind faiss --embeddings embeddings --output index
raydense search --index index --model FOLDER --queries QUERIES --output run
```
"""

_RERANKER = """---
library_name: sentence-transformers
pipeline_tag: text-ranking
tags: [sentence-transformers, cross-encoder, reranker, raydense]
---

# A re-ranker made with raydense

It reads a query and a passage together, at most {length} tokens with the special ones, and gives one score (a logit): the higher, the
more relevant. A passage's title stands before its text.

```python
from sentence_transformers import CrossEncoder

model = CrossEncoder(folder)
scores = model.predict([(query, passage) for passage in passages])
```

```sh
raydense rerank --model FOLDER --run run --corpus CORPUS --queries QUERIES --output reranked
```
"""

_GENERATOR = """---
library_name: transformers
tags: [doc2query, query-generation, raydense]
---

# A query generator made with raydense

It reads a passage (title and text, at most {passage_length} tokens{prefix}) and writes queries that the passage answers, of at most
{query_length} tokens.

```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM.from_pretrained(folder)
read = tokenizer({shown}, truncation=True, max_length={passage_length}, return_tensors="pt")
drawn = model.generate(read.input_ids, attention_mask=read.attention_mask, max_length={query_length}, do_sample=True, top_p=0.95)
print(tokenizer.decode(drawn[0], skip_special_tokens=True))
```

```sh
raydense generate --model FOLDER --corpus CORPUS --output generated
```
"""


def retriever_card(folder: Path, config: EncoderConfig, dimension: int, notes: list[str]) -> None:
    """Write README.md for an encoder of vectors of `dimension` numbers; `notes` are more paragraphs."""
    card = _RETRIEVER.format(
        config=config,
        dimension=dimension,
        normalized=" of length 1" if config.normalize else "",
        query_prefix=_quoted(config.query_prefix),
        passage_prefix=_quoted(config.passage_prefix),
    )
    _write(folder, "\n".join([card, *(f"{note}\n" for note in notes)]))


def two_encoders_card(folder: Path) -> None:
    """Write README.md for the folder of a query encoder and a passage encoder, which have their own."""
    _write(folder, _TWO)


def reranker_card(folder: Path, length: int) -> None:
    """Write README.md for a cross-encoder that reads pairs of at most `length` tokens."""
    _write(folder, _RERANKER.format(length=length))


def generator_card(folder: Path, prefix: str, passage_length: int, query_length: int) -> None:
    """Write README.md for a generator that reads `prefix` and a passage."""
    shown = f"{prefix!r} + passage" if prefix else "passage"
    _write(
        folder,
        _GENERATOR.format(
            prefix=f", after {_quoted(prefix)}" if prefix else "", shown=shown, passage_length=passage_length, query_length=query_length
        ),
    )


def add_section(folder: Path, section: str) -> None:
    """Append a section to the README.md in `folder`, which a model of another package may not have written."""
    card = folder / NAME
    before = card.read_text("utf-8") if card.is_file() else "# A model made with raydense\n"
    _write(folder, f"{before}\n{section}")


def _write(folder: Path, card: str) -> None:
    (folder / NAME).write_text(card, encoding="utf-8", newline="\n")


def _quoted(prefix: str) -> str:
    return f"`{prefix!r}`".replace("|", "\\|") if prefix else "none"
