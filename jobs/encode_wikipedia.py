"""Encode English Wikipedia, DPR's 21 million passages, with a pool of model actors that grows and shrinks, and index the vectors.

    wget https://dl.fbaipublicfiles.com/dpr/wikipedia_split/psgs_w100.tsv.gz
    ray job submit --address http://HEAD:8265 --working-dir . -- \\
        python jobs/encode_wikipedia.py --passages /shared/psgs_w100.tsv.gz --model /shared/models/retriever --output /shared/wikipedia \\
        --concurrency 1,16 --gpus-per-actor 1

Three stages: import the passages in shards, encode each shard, build the index. Submitted again after a failure, the job continues with
the shards that are missing. On a cluster that autoscales, Ray Data adds actors while shards wait for one, and nodes join for them.
"""

import argparse

import raydense as rd


def main() -> None:
    """Run the three stages, and print how to search the index."""
    given = _arguments()
    output = given.output.rstrip("/")
    settings = rd.EncodeSettings(  # before the import, so that a mistake is refused at once
        model=given.model,
        corpus=f"{output}/corpus",
        output=f"{output}/vectors",
        concurrency=given.concurrency,
        gpus_per_actor=given.gpus_per_actor,
        cpus_per_actor=given.cpus_per_actor,
    )

    rd.import_corpus("dpr", given.passages, f"{output}/corpus", shard_rows=given.shard_rows)
    vectors = rd.encode(settings)
    index = rd.index(
        rd.IndexSettings(
            kind="faiss", embeddings=str(vectors.place), factory=given.factory, shards=given.index_shards, output=f"{output}/index"
        )
    )
    print(f"{index.place}: {vectors.rows:,} passages of {vectors.summary['dimension']} dimensions")
    print(f"raydense pool start --name wikipedia --index {index.place}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", required=True, help="psgs_w100.tsv, plain or as .gz; on storage that the head sees, or in a bucket")
    parser.add_argument("--model", required=True, help="the retriever's folder; on storage that all nodes mount, or in a bucket")
    parser.add_argument("--output", required=True, help="the folder or bucket path for corpus, vectors and index")
    parser.add_argument("--shard-rows", type=int, default=25_000, help="passages of a shard: what an actor commits at once  [25000]")
    parser.add_argument("--concurrency", default="1,0", help="fewest and most actors; most 0: one a shard  [1,0]")
    parser.add_argument("--gpus-per-actor", type=float, default=-1, help="-1: one where the cluster has GPUs at the start  [-1]")
    parser.add_argument("--cpus-per-actor", type=float, default=1, help="CPUs of an actor  [1]")
    parser.add_argument("--factory", default="SQfp16", help="FAISS factory string; SQfp16 is exact on float16 vectors  [SQfp16]")
    parser.add_argument("--index-shards", type=int, default=8, help="parts of the index, each held by an actor of its own  [8]")
    return parser.parse_args()


if __name__ == "__main__":
    with rd.one_line_errors("encode_wikipedia"):
        main()
