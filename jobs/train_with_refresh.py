"""Train a retriever whose hard negatives are mined again while it trains (ANCE), on a data set that `raydense import` made.

    raydense submit import --format beir --input /shared/beir/scifact --output /shared/scifact --address http://HEAD:8265
    ray job submit --address http://HEAD:8265 --working-dir . -- \\
        python jobs/train_with_refresh.py --data /shared/scifact --model /shared/models/MiniLM --output /shared/scifact-retriever \\
        --workers 4 --gpus-per-worker 1 --epochs 8 --refresh-every 2 --refresh-mode async

The first negatives are BM25's. At each refresh the weights of that step encode the corpus, the queries of the training set are searched, and
new negatives are drawn from what is found. `sync` pauses the training meanwhile and lends its GPUs; `async` trains on, and needs free CPUs or GPUs
next to the training workers. Submitted again after a failure, the job continues from the last checkpoint, with any number of workers.
"""

import argparse

import raydense as rd


def main() -> None:
    """Mine BM25's negatives, then train with refresh."""
    given = _arguments()
    data, output = given.data.rstrip("/"), given.output.rstrip("/")
    corpus, queries, qrels = f"{data}/corpus", f"{data}/queries", f"{data}/qrels/{given.split}"

    index = rd.index(rd.IndexSettings(kind="bm25", corpus=corpus, output=f"{output}/bm25"))
    run = rd.search(rd.SearchSettings(index=str(index.place), queries=queries, qrels=qrels, k=100, output=f"{output}/bm25-run"))
    examples = rd.mine(
        rd.MineSettings(
            run=str(run.place), corpus=corpus, queries=queries, qrels=qrels, negatives=given.negatives, output=f"{output}/examples"
        )
    )
    model = rd.train(
        rd.TrainSettings(
            objective="retriever",
            model=given.model,
            corpus=corpus,
            queries=queries,
            examples=str(examples.place),
            output=f"{output}/retriever",
            negatives=min(given.negatives, 3),
            normalize=True,
            temperature=0.05,
            epochs=given.epochs,
            batch_size=given.batch_size,
            lr=given.lr,
            workers=given.workers,
            gpus_per_worker=given.gpus_per_worker,
            refresh={"every": given.refresh_every, "unit": "epochs", "mode": given.refresh_mode, "negatives": given.negatives},
        )
    )
    print(f"{model.place}: {model.summary['steps']} steps")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="what `raydense import` made: a folder with corpus, queries and qrels")
    parser.add_argument("--split", default="train", help="the judgements to learn from  [train]")
    parser.add_argument("--model", required=True, help="the encoder's folder to start from, or 'tiny'")
    parser.add_argument("--output", required=True, help="the folder or bucket path for the negatives and the retriever")
    parser.add_argument("--epochs", type=float, default=4, help="passes over the examples  [4]")
    parser.add_argument("--batch-size", type=int, default=64, help="queries of a step, over all workers  [64]")
    parser.add_argument("--lr", type=float, default=2e-5, help="highest learning rate  [2e-5]")
    parser.add_argument("--workers", type=int, default=1, help="training workers  [1]")
    parser.add_argument("--gpus-per-worker", type=int, default=-1, help="-1: one where the cluster has GPUs at the start  [-1]")
    parser.add_argument("--negatives", type=int, default=8, help="negatives mined of each query  [8]")
    parser.add_argument("--refresh-every", type=float, default=1, help="epochs between two minings  [1]")
    parser.add_argument("--refresh-mode", choices=["sync", "async"], default="sync", help="whether the training waits  [sync]")
    return parser.parse_args()


if __name__ == "__main__":
    with rd.one_line_errors("train_with_refresh"):
        main()
