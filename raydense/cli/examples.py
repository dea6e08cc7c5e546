"""An example of a verb, at the end of its help."""

from __future__ import annotations

_SCIFACT = "--corpus data/scifact/corpus --queries data/scifact/queries"
_DATA = "--corpus data/own/corpus --queries data/own/queries"
_TEST = f"{_DATA} --qrels data/own/qrels/test"

EXAMPLES = {
    "import": "raydense import --format beir --input scifact/ --fill-splits --output data/scifact",
    "split": "raydense split --corpus data/documents/corpus --model MODEL_DIR --length 144 --output data/passages",
    "encode": "raydense encode --model MODEL_DIR --corpus data/scifact/corpus --output emb",
    "index": "raydense index --kind faiss --embeddings emb --output ix/dense",
    "search": "raydense search --index ix/dense --model MODEL_DIR --queries data/scifact/queries --k 100 --output runs/dense",
    "mine": f"raydense mine --run runs/bm25 {_SCIFACT} --qrels data/scifact/qrels/train --output ex",
    "train": f"raydense train --objective retriever --model MODEL_DIR {_SCIFACT} --examples ex --dev.qrels data/scifact/qrels/dev --output model",
    "rerank": f"raydense rerank --model ce --run runs/dense {_SCIFACT} --depth 50 --output runs/reranked",
    "label": f"raydense label --run runs/scored {_SCIFACT} --qrels data/scifact/qrels/train --output ex-denoised",
    "fuse": "raydense fuse --run runs/bm25 --run runs/dense --qrels data/scifact/qrels/dev --output runs/weighted",
    "evaluate": "raydense evaluate --run runs/bm25 --run runs/dense --qrels data/scifact/qrels/test --output report",
    "export": "raydense export --format trec --run runs/dense --output dense.trec",
    "construct": "raydense construct --input questions/ --fill-splits --output data/own",
    "annotate": f"raydense annotate --run bm25=runs/bm25 --run de=runs/de --model models/ce {_TEST} --output annotation",
    "adjudicate": "raydense adjudicate --annotation annotation --judgements answers/ --qrels data/own/qrels/test --output data/test-checked",
    "overlap": "raydense overlap --queries data/own/queries --train-qrels data/own/qrels/train --against data/own/qrels/test --output clean",
    "analyse": f"raydense analyse --run runs/de {_TEST} --output errors",
    "perturb": "raydense perturb --queries data/own/queries --kind typo --rate 0.1 --output noisy",
}


def example_of(verb: str) -> str | None:
    """The example as the end of a help has it, on a line that is not wrapped; None for a verb without one."""
    return f"\b\nExample:\n  {EXAMPLES[verb]}" if verb in EXAMPLES else None
