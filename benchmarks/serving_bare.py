"""The smallest server of dense search, for comparison: FastAPI, sentence-transformers and FAISS in one process.

    .venv/bin/python benchmarks/serving_bare.py --index ix --model model --port 8001
    .venv/bin/python benchmarks/serving_bare.py --index ix --model model --port 8001 --threads 2     # two requests at once, each on one core

It takes the requests of `raydense serve`, one query each, and replies with the ids and scores of its passages. The index is one of raydense's, Flat and of
one shard: its vectors go into an IndexFlatIP.
"""

from __future__ import annotations

import argparse
import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import faiss
import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

from raydense.retrieval.passage_ids import PassageIds
from raydense.storage import Artifact


class Asked(BaseModel):
    query: str
    k: int = 10


def _on_one_core() -> None:
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)


def app(index: str, model: str, threads: int) -> FastAPI:
    """The server; with `threads` so many requests are answered at once, each on one core, else one after the other on all cores."""
    if threads:
        _on_one_core()
    artifact = Artifact.open(index, "index")
    stored = faiss.read_index(str(artifact.file("shard-00000.faiss")))
    flat = faiss.IndexFlatIP(stored.d)
    flat.add(stored.reconstruct_n(0, stored.ntotal))
    ids = PassageIds(artifact)
    encoder = SentenceTransformer(model, device="cpu")
    pool = ThreadPoolExecutor(threads, initializer=_on_one_core) if threads else None
    api = FastAPI()

    def answer(asked: Asked) -> dict[str, Any]:
        vectors = encoder.encode([asked.query], show_progress_bar=False)
        scores, rows = flat.search(vectors, asked.k)
        found = ids.take(rows[0]).to_pylist()
        return {"results": [[{"id": one, "score": float(score)} for one, score in zip(found, scores[0], strict=True)]]}

    @api.post("/search")
    async def search(asked: Asked) -> dict[str, Any]:
        return await asyncio.get_running_loop().run_in_executor(pool, answer, asked) if pool else answer(asked)

    return api


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    uvicorn.run(app(args.index, args.model, args.threads), host="127.0.0.1", port=args.port, log_level="warning")


if __name__ == "__main__":
    main()
