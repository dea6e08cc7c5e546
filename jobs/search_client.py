"""A client of a search pool that another job started: reads questions, asks the pool block by block, writes the hits as JSON lines.

    ray job submit --address http://HEAD:8265 --working-dir . -- \\
        python -m raydense pool start --name wikipedia --index /shared/wikipedia/index --shard-replicas 2
    ray job submit --address http://HEAD:8265 --working-dir . -- \\
        python jobs/search_client.py --pool wikipedia --model /shared/models/retriever --corpus /shared/wikipedia/corpus \\
        --questions /shared/questions.txt --output /shared/hits.jsonl
    ray job submit --address http://HEAD:8265 --working-dir . -- python -m raydense pool close --name wikipedia

Any number of clients may ask one pool. A client needs no restart when the pool loses an actor, gains replicas or switches to a new index
of the same corpus: each block of questions is answered by one index, whose fingerprint stands in every line of the output.
"""

import argparse
import json
import os
import time

import raydense as rd
from raydense.inference.query_encoder import query_encoder
from raydense.retrieval.asking import Answer
from raydense.retrieval.query_vectors import check_model


def main() -> None:
    """Ask the pool for every question of the file."""
    given = _arguments()
    corpus = rd.PassageStore(given.corpus)
    pool = rd.SearchPool.connect(given.pool)
    check_model(given.model, pool.index)
    corpus.refuse_rows_of_another(pool.index)
    encode = query_encoder(given.model) if given.model else list
    with open(given.questions, encoding="utf-8") as file:
        questions = [line.strip() for line in file if line.strip()]
    blocks = [questions[at : at + given.block] for at in range(0, len(questions), given.block)]

    start = time.perf_counter()
    aside = f"{given.output}.part"  # the output has its name when it is whole
    with open(aside, "w", encoding="utf-8") as out:
        answers = pool.answers((encode(block) for block in blocks), given.k)
        for block, answer in zip(blocks, answers, strict=True):
            for line in _lines(block, answer, corpus):
                out.write(json.dumps(line, ensure_ascii=False) + "\n")
    os.replace(aside, given.output)
    seconds = time.perf_counter() - start
    print(f"{given.output}: {len(questions):,} questions in {seconds:.1f} s ({len(questions) / seconds:,.0f} a second)")


def _lines(questions: list[str], answer: Answer, corpus: rd.PassageStore) -> list[dict[str, object]]:
    """Per question: its hits, best first, and the fingerprint of the index that answered."""
    scores, rows = answer.hits
    lines: list[dict[str, object]] = []
    for question, found, values in zip(questions, rows, scores, strict=True):
        there = found >= 0
        passages = corpus.take(found[there], ["passage_id", "title"]).to_pylist()
        hits = [{**passage, "score": round(float(value), 6)} for passage, value in zip(passages, values[there], strict=True)]
        lines.append({"question": question, "index": answer.index, "hits": hits})
    return lines


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", required=True, help="the name that `raydense pool start` gave the pool")
    parser.add_argument("--model", help="the retriever's folder; none for a pool over a BM25 index")
    parser.add_argument("--corpus", required=True, help="the corpus that the index was made from")
    parser.add_argument("--questions", required=True, help="a text file, one question per line")
    parser.add_argument("--output", required=True, help="the file of JSON lines to write")
    parser.add_argument("--k", type=int, default=10, help="passages of each question  [10]")
    parser.add_argument("--block", type=int, default=256, help="questions of one call  [256]")
    return parser.parse_args()


if __name__ == "__main__":
    with rd.one_line_errors("search_client"):
        main()
