"""The figures of a plan: sizes that flow from the files of a data set through every stage, and time and money by rates."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from raydense.cli import main
from raydense.data.settings import ImportSettings, MixSettings
from raydense.data.source_size import parts_held
from raydense.data.tables import commit_table
from raydense.forecast import Forecast, Holds, Known, Model
from raydense.models.model_size import TINY, model_of
from raydense.recipes.content import recipe_file
from raydense.recipes.planning import Prices, estimate_of, total_of
from raydense.recipes.rates import Rate, Rates, stored_rates
from raydense.recipes.recipe import Recipe, plan
from raydense.storage import Draft
from raydense.training import forecasts, memory
from raydense.training.settings import TrainSettings

QUERIES, PASSAGES = 5_000, 3_000


@pytest.fixture
def msmarco(tmp_path: Path) -> Path:
    folder = tmp_path / "msmarco"
    folder.mkdir()
    (folder / "collection.tsv").write_text("".join(f"{i}\tpassage {i} of the collection\n" for i in range(PASSAGES)))
    (folder / "queries.train.tsv").write_text("".join(f"{i}\tquery {i}\n" for i in range(QUERIES)))
    (folder / "queries.dev.small.tsv").write_text("".join(f"{QUERIES + i}\tquery {i}\n" for i in range(50)))
    (folder / "qrels.train.tsv").write_text("".join(f"{i}\t0\t{i % PASSAGES}\t1\n" for i in range(QUERIES)))
    (folder / "qrels.dev.small.tsv").write_text("".join(f"{QUERIES + i}\t0\t{i}\t1\n" for i in range(50)))
    return folder


def test_a_plan_of_ms_marco_has_figures_for_every_stage(
    tmp_path: Path, msmarco: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "describe", lambda settings: ("", 5))
    monkeypatch.setattr(forecasts, "_ESTIMATES", {})
    draft = Draft.open(tmp_path / "unlabelled", "queries", {"test": 1})
    commit_table(draft, "queries.parquet", pa.table({"query_id": [f"u{i}" for i in range(QUERIES)], "text": ["a query"] * QUERIES}))
    draft.finish(QUERIES)
    given = (f"source={msmarco}", f"encoder={tiny_folder}", f"large={tiny_folder}", f"unlabelled={tmp_path / 'unlabelled'}")
    rows = plan(Recipe.read(recipe_file("pair-msmarco"), tmp_path / "out", given), prices=Prices(2, 1))
    needs = {row["stage"]: row["needs"] for row in rows}
    assert needs["data"] == "about 3,000 passages and 5,050 queries to read".replace(" and", ",")
    assert needs["words"] == "about 3,000 passages to count words of"
    assert needs["bm25"] == "at most 5,000 queries x 200"
    assert needs["stage-2"] == "at most 42 steps of 4,096 queries, 8 worker(s)"
    assert needs["found"] == "at most 50 queries x 1000"
    total = total_of(rows)
    assert total["unknown"] == []
    assert total["seconds"] == pytest.approx(sum(row["estimate"]["seconds"] for row in rows), rel=1e-3)
    assert total["cost"] == pytest.approx(total["seconds"] / 3600 * 2, rel=0.05), "two CPUs were measured"
    assert total["output_bytes"] > 3_000 * 128 * 2 * 2, "the vectors of two encodings"
    assert not (tmp_path / "out").exists()


def test_a_plan_has_figures_for_what_follows_a_joint_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "describe", lambda settings: ("", 5))
    monkeypatch.setattr(forecasts, "_ESTIMATES", {})
    rows = plan(Recipe.read(recipe_file("rocketqav2-sample"), tmp_path / "out"), prices=Prices(2, 1))
    assert total_of(rows)["unknown"] == []


def work_of(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> dict[str, float]:
    """The work of a training, of folders whose sizes are known: 1,000 passages, 640 examples, a small encoder and a large re-ranker."""
    monkeypatch.setattr(memory, "describe", lambda settings: ("", 5))
    monkeypatch.setattr(forecasts, "_ESTIMATES", {})
    known = Known()
    known.expect({"c": Holds(1_000, each=400.0), "q": Holds(640, each=40.0), "e": Holds(640), "two": Holds(640, drawn=160)})
    known.expect({"small": Model(0, flops=1e7, each=384), "large": Model(0, flops=3e8), "large-2": Model(0, flops=6e8)})
    given = {"model": "small", "corpus": "c", "queries": "q", "examples": "e", "output": "o", "batch_size": 64, "epochs": 10, "seed": 1}
    return forecasts.training_forecast(TrainSettings(**(given | changes)), known).work


def test_pairs_are_read_by_the_re_ranker(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"objective": "joint", "max_steps": 10, "negatives": 7}
    one, two = (work_of(monkeypatch, **given, reranker=name)["flops"] for name in ("large", "large-2"))
    alone = work_of(monkeypatch, objective="reranker", model="large", max_steps=10, negatives=7)["flops"]
    assert two - one == pytest.approx(alone, rel=0.01), "twice the operations of the pairs"


def test_a_step_counts_the_forward_passes_that_it_makes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of gradient caching, where a loss couples the pieces, or one list is in several; and of activations that are not kept."""

    def passes(objective: str, **changes: Any) -> float:
        own = {"model": "large"} if objective == "reranker" else {}
        found, plain = (work_of(monkeypatch, objective=objective, max_steps=10, negatives=3, **own, **more) for more in (changes, {}))
        return 3 * found["flops"] / plain["flops"]

    texts = 64 * 4
    assert passes("retriever", micro_batch=texts - 1) == pytest.approx(4)
    assert passes("retriever", micro_batch=texts) == pytest.approx(3), "one piece"
    assert passes("retriever", micro_batch="auto") == pytest.approx(3)
    assert passes("reranker", micro_batch=4) == pytest.approx(3), "plain accumulation"
    assert passes("reranker", micro_batch=3) == pytest.approx(4), "a list is cut"
    assert passes("retriever", activation_checkpointing=True) == pytest.approx(4)
    assert passes("retriever", activation_checkpointing=True, micro_batch=8) == pytest.approx(5)


def test_a_static_teacher_runs_forward_only(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"objective": "joint", "max_steps": 10, "negatives": 7, "reranker": "large"}
    static, dynamic = (work_of(monkeypatch, **given, teacher=teacher)["flops"] for teacher in ("static", "dynamic"))
    pairs = work_of(monkeypatch, objective="reranker", model="large", max_steps=10, negatives=7)["flops"]
    assert dynamic - static == pytest.approx(pairs * 2 / 3)


def test_each_measurement_of_the_dev_metric_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first step, at each interval and after the last; of what is measured: passages, pairs, or both."""

    def measured(**changes: Any) -> float:
        given = {"max_steps": 10, "negatives": 7, **changes}
        dev = {"qrels": "d", "run": "r", "passages": 500} | given.pop("dev", {})
        plain, found = (work_of(monkeypatch, **given, **more)["flops"] for more in ({}, {"dev": dev}))
        return found - plain

    passages, pairs = 500 * 1e7 * (400 / 4.2 + 2), 500 * 3e8 * (440 / 4.2 + 2)
    assert measured(objective="retriever") == pytest.approx(11 * passages, rel=0.01)
    assert measured(objective="retriever", dev={"every": 4}) == pytest.approx(4 * passages, rel=0.01)
    assert measured(objective="reranker", model="large") == pytest.approx(11 * pairs, rel=0.01)
    joint = {"objective": "joint", "reranker": "large"}
    assert measured(**joint) == pytest.approx(11 * (passages + pairs), rel=0.01)
    assert measured(**joint, dev={"run": None}) == pytest.approx(11 * passages, rel=0.01)
    assert measured(**joint, teacher="static") == pytest.approx(11 * passages, rel=0.01), "it measures the same at each step"


def test_a_refresh_encodes_the_corpus_and_scores_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_refreshes(**refresh: Any) -> float:
        plain, with_refresh = (work_of(monkeypatch, objective="retriever", **more)["flops"] for more in ({}, {"refresh": refresh}))
        return with_refresh - plain

    once = of_refreshes(every=50)  # of 100 steps: the last boundary makes no generation
    assert once == pytest.approx(1e7 * 1_000 * (400 / 4.2 + 2), rel=0.01)
    assert of_refreshes(every=5, unit="epochs") == pytest.approx(once)
    assert of_refreshes(every=25) == pytest.approx(3 * once)
    assert of_refreshes(every=25, mode="async") == pytest.approx(2 * once)
    denoised = of_refreshes(every=50, reranker="large", depth=20, fraction=0.5)
    assert denoised - once == pytest.approx(3e8 * 0.5 * 640 * 20 * (440 / 4.2 + 2), rel=0.01)


def test_an_epoch_of_several_sources_has_what_their_weights_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "refreshes" not in work_of(monkeypatch, objective="retriever")
    assert work_of(monkeypatch, objective="retriever", refresh={"every": 25})["refreshes"] == 3
    assert work_of(monkeypatch, objective="retriever", examples="two")["steps"] == 20  # 160 of 640 in each of ten
    known = Known()
    known.expect({"gold": Holds(50_000), "pseudo": Holds(1_000_000), "q": Holds(9), "c": Holds(9)})
    given = {"examples": ["a=gold", "b=pseudo"], "queries": ["q"], "corpus": ["c"], "weights": [1, 0.1], "output": "o"}
    made = MixSettings.read(given).forecast(known).makes["o/examples"]
    assert (made.rows, made.drawn) == (1_050_000, 150_000)


def test_the_lines_of_a_large_file_are_estimated_from_its_first(msmarco: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ImportSettings(format="msmarco", input=str(msmarco), output="o")
    monkeypatch.setattr("raydense.data.source_size._READ", 20_000)
    parts, size = parts_held(settings)
    assert size == sum(file.stat().st_size for file in msmarco.iterdir())
    assert parts["corpus"].rows == pytest.approx(PASSAGES, rel=0.1)
    assert set(parts) == {"corpus", "queries", "qrels/train", "qrels/dev.small"}


def test_triples_are_not_counted_as_what_they_become(msmarco: Path) -> None:
    """Many lines become one example, and of text triples one passage."""
    (msmarco / "qidpidtriples.train.tsv").write_text("1\t2\t3\n" * 1_000)
    parts, _ = parts_held(ImportSettings(format="msmarco", input=str(msmarco), output="o"))
    assert set(parts) == {"corpus", "queries", "qrels/train", "qrels/dev.small"}
    for name in ("collection.tsv", *(file.name for file in msmarco.glob("q*"))):
        (msmarco / name).unlink()
    (msmarco / "triples.train.tsv").write_text("q\tp\tn\n" * 1_000)
    settings = ImportSettings(format="msmarco", input=str(msmarco), output="o")
    assert parts_held(settings)[0] == {}
    assert settings.forecast(Known()).needs == "what it holds shows when it has run"
    (msmarco / "qrels.dev.tsv").write_text("1\t0\t2\t1\n")
    assert settings.forecast(Known()).needs == "what it holds shows when it has run"


def test_the_size_of_a_model_is_read_from_its_folder(tiny_folder: Path) -> None:
    model = model_of(Known(), str(tiny_folder))
    assert model
    assert (model.each, model.flops, model.scale) == (TINY.each, TINY.flops, "tiny")
    assert model.bytes == sum(file.stat().st_size for file in tiny_folder.rglob("*") if file.is_file())
    assert model_of(Known(), "owner/name-of-the-hub") is None


def test_a_folder_whose_vectors_are_cut_has_their_width(tiny_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "cut"))
    file = folder / "config_sentence_transformers.json"
    file.write_text(json.dumps({**(json.loads(file.read_text()) if file.exists() else {}), "truncate_dim": 100}))
    model = model_of(Known(), str(folder))
    assert model
    assert model.each == 100.0


def test_time_and_money_follow_from_rates() -> None:
    rate = Rate({"start": 2.0, "hits": 0.5}, "a cluster", "a day", cpus=4, gpus=2)
    forecast = Forecast("", {"o": Holds(7, bytes=50.0)}, "mine", {"hits": 100.0}, memory=9, gpus=-1)
    found = estimate_of(forecast, Rates({"mine": rate}), "negatives", Prices(gpu_hour=3, cpu_hour=1))
    assert found["seconds"] == 52
    assert found["error"] is None
    assert found["gpu_hours"] == pytest.approx(2 * 52 / 3600, abs=1e-4)
    assert found["cost"] == pytest.approx((2 * 3 + 4 * 1) * 52 / 3600, abs=1e-4)
    assert (found["memory_bytes"], found["output_bytes"], found["measured"]) == (9, 50, "a cluster, a day")


def test_a_stage_whose_cluster_has_no_price_has_no_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rates that come along are of CPUs: by the price of GPUs alone they would seem free."""
    monkeypatch.setenv("RAYDENSE_CACHE", str(tmp_path))

    def shown(*prices: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["plan", "quickstart", "--output", str(tmp_path / "out"), *prices])
        assert ended.value.code in (0, None)
        return capsys.readouterr().out

    of_gpus, of_both = shown("--price-gpu-hour", "2.5"), shown("--price-gpu-hour", "2.5", "--price-cpu-hour", "60")
    assert not re.search(r"\bcost$", of_gpus, re.MULTILINE)
    assert "no cost: the rates are of machines without GPUs: give --calibrate on a cluster with GPUs, or --price-cpu-hour\n" in of_gpus
    assert re.search(r"\bcost$", of_both, re.MULTILINE)
    assert "no cost" not in of_both
    rows = [
        {"stage": name, "state": "ready", "estimate": {"seconds": 10.0, "error": None, "gpu_hours": 0.0, **cost}}
        for name, cost in (("a", {"cost": 3.0}), ("b", {}))
    ]
    assert total_of(rows)["cost"] == 3.0


def test_work_in_fewer_parts_than_cpus_takes_longer() -> None:
    rate = Rate({"start": 1.0, "flops": 1.0}, "", "", cpus=8, gpus=0)
    assert [rate.seconds(Forecast(work={"flops": 8.0}, tasks=tasks))[0] for tasks in (0, 1, 4, 100)] == [9, 65, 17, 9]


def test_errors_of_stages_add_as_independent() -> None:
    rows = [
        {"stage": name, "state": "ready", "estimate": {"seconds": 10.0, "error": error, "gpu_hours": 0.0}}
        for name, error in (("a", 3.0), ("b", 4.0))
    ]
    assert total_of(rows) == {"seconds": 20, "error": 5, "gpu_hours": 0, "memory_bytes": 0, "output_bytes": 0, "unknown": []}
    rows += [{"stage": "c", "state": "waits", "estimate": {}}, {"stage": "d", "state": "done", "estimate": {}}]
    assert total_of(rows)["unknown"] == ["c"]


def test_damaged_rates_of_the_cache_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYDENSE_CACHE", str(tmp_path))
    shipped = stored_rates()
    (tmp_path / "calibrated.json").write_text("{")
    assert stored_rates() == shipped
