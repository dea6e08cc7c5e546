"""A retrieval task of mteb over a BEIR folder: what `rd.MtebSearch` scores, and what sentence-transformers scores with the same model.

    python benchmarks/mteb_task.py --input ../shared/data/scifact --model MODEL --output OUT [--split test] [--precision fp32]

Nothing is downloaded: the folder is imported, exported as a folder of the Hub, and read by mteb as one. Run again, it continues.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import raydense as rd

_SHOWN = ("ndcg_at_10", "map_at_100", "recall_at_100")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("input", "model", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--split", default="test")
    parser.add_argument("--precision", default="fp32")
    given = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    from sentence_transformers import SentenceTransformer

    data = rd.import_dataset(rd.ImportSettings(format="beir", input=given.input, strict=False, output=given.output / "data"))
    if not (given.output / "hub").exists():
        rd.export(rd.ExportSettings(format="huggingface", dataset=data.path, output=given.output / "hub"))
    print(f"{'':>24}{'seconds':>10}" + "".join(f"{name:>15}" for name in _SHOWN))
    ours = rd.MtebSearch(given.model, given.output / "mteb", encode={"precision": given.precision, "dtype": "float32"})
    for name, model in {"raydense": ours, "sentence-transformers": SentenceTransformer(str(given.model), device="cpu")}.items():
        begun = time.perf_counter()
        found = scores(model, given.output / "hub", given.split)
        print(f"{name:>24}{time.perf_counter() - begun:10.0f}" + "".join(f"{found[metric]:15.5f}" for metric in _SHOWN), flush=True)


def scores(model: Any, folder: Path, split: str) -> dict[str, float]:
    """What mteb measures of a model on a folder that `datasets.load_dataset` reads."""
    import mteb
    from mteb.abstasks import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    class Local(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name="LocalRetrieval", description="a BEIR folder", dataset={"path": str(folder), "revision": "main"}, type="Retrieval",
            category="t2t", eval_splits=[split], eval_langs=["eng-Latn"], main_score="ndcg_at_10",
        )  # fmt: skip

    (result,) = mteb.evaluate(model, Local(), cache=None, show_progress_bar=False).task_results
    found: dict[str, float] = result.scores[split][0]
    return found


if __name__ == "__main__":
    main()
