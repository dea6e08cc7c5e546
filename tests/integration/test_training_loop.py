"""What two workers of a training agree on, without Ray: they are plain processes of torch's own."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
import torch.distributed as dist
from inference_world import make_reranker, write_table
from ranks import run_ranks
from training_data import make_training_data

from raydense.data.store import PassageStore
from raydense.data.tables import commit_table, read_table
from raydense.errors import InputError, StorageError
from raydense.models.tiny import make_tiny_encoder
from raydense.storage import Artifact, Draft, Place, provenance
from raydense.training import notice
from raydense.training.generations import Generations
from raydense.training.loop import Job, Loop, refuse_weights_not_finite
from raydense.training.method import load_model, method_of
from raydense.training.micro_batch import bounded_by, find_micro_batch, kept_micro_batch
from raydense.training.notice import Asked, Notice
from raydense.training.precision import Precision, choose_precision
from raydense.training.registered import RUN, State
from raydense.training.settings import TrainSettings
from raydense.training.worker import Worker

CPU = torch.device("cpu")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite(value: float) -> None:
    sound = {"a": torch.ones(3), "count": torch.tensor([7])}
    refuse_weights_not_finite(sound, 5, Worker(0, 1, 1, CPU))
    with pytest.raises(InputError, match="weights are not finite numbers after step 5; lower --lr"):
        refuse_weights_not_finite({**sound, "b": torch.tensor([1.0, value])}, 5, Worker(0, 1, 1, CPU))


def hold_half(rank: int, folder: str) -> None:
    """A worker of two; only the second holds the weight that is wrong."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        refuse_weights_not_finite({"w": torch.tensor([1.0, float("nan")][rank])}, 3, Worker(rank, 2, 2, CPU))
    except InputError as error:
        Path(folder, str(rank)).write_text(str(error))


def test_all_workers_refuse_what_one_of_them_holds(tmp_path: Path) -> None:
    run_ranks(hold_half, (str(tmp_path),), 2)
    faults = [(tmp_path / str(rank)).read_text() for rank in range(2)]
    assert faults[0] == faults[1]
    assert "not finite" in faults[0]


def rank_with_memory(rank: int, given: dict[str, Any], folder: str) -> None:
    """Worker 1 shares its machine with so many others that nothing is left for it."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    asked = TrainSettings(**given)
    try:
        find_micro_batch(asked, asked.model, load_model(asked, asked.model).train(), CPU, 10**9 if rank else 1)
    except InputError as error:
        Path(folder, f"refused-{rank}").write_text(str(error))
    dist.destroy_process_group()


def test_workers_agree_on_what_fits_the_one_with_least(tmp_path: Path) -> None:
    data = make_training_data(tmp_path / "data")
    make_tiny_encoder(["the red fox", "an old bridge of stone"], tmp_path / "tiny", 1)
    asked = data.settings(tmp_path / "o", model=str(tmp_path / "tiny"), micro_batch="auto", workers=2, batch_size=4, accumulation=1)
    given = asked.model_dump(exclude_unset=True)
    run_ranks(rank_with_memory, (given, str(tmp_path)), 2)
    refused = [(tmp_path / f"refused-{rank}").read_text() for rank in (0, 1)]
    assert refused[0] == refused[1]
    assert "even one text at a time needs about" in refused[0]


def see_kept(rank: int, folder: str) -> None:
    """A worker of two; the second has half as much memory, and does not see the file yet that the first reads."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    kept, devices = kept_micro_batch(Place.of(folder) / f"kept-{rank}.json", CPU, 1 + rank)
    Path(folder, f"seen-{rank}").write_text(json.dumps([kept and kept.texts, devices]))
    dist.destroy_process_group()


def test_workers_see_the_devices_of_all_and_the_same_kept_micro_batch(tmp_path: Path) -> None:
    (tmp_path / "kept-0.json").write_text('{"texts": 4, "devices": []}')
    run_ranks(see_kept, (str(tmp_path),), 2)
    first, second = (json.loads((tmp_path / f"seen-{rank}").read_text()) for rank in (0, 1))
    assert first == second == [4, sorted(bounded_by(CPU, on_machine) for on_machine in (1, 2))]


def test_a_checkpoint_is_late_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notice, "node_leaves", lambda: False)
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    by_minutes, by_steps = (Notice(Place.of(tmp_path), minutes, 0, 1, CPU) for minutes in (1.0, 0.0))
    assert by_minutes.asked() == Asked.NOTHING
    now = 161.0
    assert [by_minutes.asked(), by_steps.asked()] == [Asked.SAVE, Asked.NOTHING]
    by_minutes.saved()
    assert by_minutes.asked() == Asked.NOTHING


def ask_until_told(rank: int, folder: str) -> None:
    """A worker of two, of which only the first looks for the file."""
    notice.node_leaves = lambda: False
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    asks, rounds = Notice(Place.of(folder), 0.0, rank, 2, CPU), 0
    asks.watch()
    while asks.asked() == Asked.NOTHING:
        rounds += 1
        if rank and rounds == 100:
            notice.ask_to_end(Place.of(folder))
    Path(folder, f"rounds-{rank}").write_text(str(rounds))
    dist.destroy_process_group()


def test_workers_end_after_the_same_step(tmp_path: Path) -> None:
    run_ranks(ask_until_told, (str(tmp_path),), 2)
    first, second = ((tmp_path / f"rounds-{rank}").read_text() for rank in (0, 1))
    assert first == second
    assert int(first) >= 100


def wait_together(rank: int, folder: str, asked: bool) -> None:
    """A worker of two; what they wait for is there for the first at once, for the second later, or never where they are `asked` to end."""
    notice.node_leaves = lambda: False
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    waits, looks = Notice(Place.of(folder), 0.0, rank, 2, CPU), 0
    waits.watch()

    def ready() -> bool:
        nonlocal looks
        looks += 1
        if asked and rank and looks == 5:
            notice.ask_to_end(Place.of(folder))
        return not rank or (not asked and looks == 5)

    Path(folder, f"waited-{rank}").write_text(f"{waits.wait(ready)} after {looks} looks")
    dist.destroy_process_group()


@pytest.mark.parametrize("asked", [False, True])
def test_workers_leave_a_wait_after_the_same_look(tmp_path: Path, asked: bool) -> None:
    """One that left alone would wait for the others in the next step."""
    run_ranks(wait_together, (str(tmp_path), asked), 2)
    first, second = ((tmp_path / f"waited-{rank}").read_text() for rank in (0, 1))
    assert first == second
    assert first.startswith("False after ") if asked else first == "True after 5 looks"


def test_a_wait_ends_where_the_node_is_going_to_be_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leaves = iter([False, False, True])
    monkeypatch.setattr(notice, "node_leaves", lambda: next(leaves))
    assert not Notice(Place.of(tmp_path), 0.0, 0, 1, CPU).wait(lambda: False)


@pytest.mark.parametrize("replaced", ["model", "queries", "examples"])
def test_a_worker_refuses_an_input_that_was_replaced(tmp_path: Path, replaced: str) -> None:
    """After the training began and before this worker opened it, by one that would do as well."""
    data = make_training_data(tmp_path / "data")
    make_tiny_encoder(["the red fox", "an old bridge of stone"], tmp_path / "tiny", 1)
    asked = data.settings(Place.of(tmp_path / "o"), model=str(tmp_path / "tiny"))
    shared = Place.of(tmp_path / "shared")
    job = Job(asked, asked.model, shared, 1, {}, Generations(shared, steps=1, every=1), 1, provenance("train", asked)["inputs"])
    Loop(job, Worker(0, 1, 1, CPU))
    folder = Path(getattr(asked, replaced))
    if replaced == "model":
        make_tiny_encoder(["the red fox", "an old bridge of stone"], folder, 2)
    else:
        table = read_table(folder, replaced)
        summary = Artifact.open(folder).summary
        shutil.rmtree(folder)
        draft = Draft.open(folder, replaced, {"stage": "another"})
        commit_table(draft, "made.parquet", table.take(list(reversed(range(len(table))))))
        draft.finish(len(table), **summary)
    with pytest.raises(InputError, match=f"{folder.name}: was replaced while a stage was reading it"):
        Loop(job, Worker(0, 1, 1, CPU))


def test_a_worker_refuses_a_method_whose_code_was_edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an editor, while the workers start again: this one would make the steps that are left by another loss."""
    data, file = make_training_data(tmp_path / "data"), tmp_path / "edited.py"
    code = "from raydense.training.methods.retriever import Retriever\nclass Mine(Retriever):\n    pass\n"
    file.write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    make_tiny_encoder(["the red fox", "an old bridge of stone"], tmp_path / "tiny", 1)
    asked = data.settings(Place.of(tmp_path / "o"), objective="edited:Mine", model=str(tmp_path / "tiny"))
    shared = Place.of(tmp_path / "shared")
    job = Job(asked, asked.model, shared, 1, {}, Generations(shared, steps=1, every=1), 1, {}, asked.method_code())
    Loop(job, Worker(0, 1, 1, CPU))
    file.write_text(f"{code}    # another loss\n")
    with pytest.raises(InputError, match=r"^edited:Mine: its code is not that which the training began with"):
        Loop(job, Worker(0, 1, 1, CPU))


def test_dropout_draws_anew_at_each_step_and_on_each_worker(tmp_path: Path) -> None:
    """The seed of each forward, of two steps of two parts: the first worker alone, and the second of two, which gathers nothing here."""
    data = make_training_data(tmp_path / "data")
    make_tiny_encoder(["the red fox", "an old bridge of stone"], tmp_path / "tiny", 1)
    asked = data.settings(tmp_path / "o", model=str(tmp_path / "tiny"), accumulation=2, cross_batch=False, workers=2)
    shared = Place.of(tmp_path / "shared")

    def seeds(rank: int) -> list[int]:
        found: list[int] = []
        loop = Loop(Job(asked, asked.model, shared, 2, {}, Generations(shared, steps=2, every=2), 2, {}), Worker(rank, 2, 2, CPU))
        loop.engine.module.register_forward_pre_hook(lambda *_: found.append(torch.initial_seed()))
        for step, sent in loop.batches.range(0, 2):
            loop._train_step(step, loop.transfer.receive(sent))
        return found

    once, again, other = seeds(0), seeds(0), seeds(1)
    assert once == again
    assert len(once) == len(other) >= 4
    assert len({*once, *other}) == 8


def begin_without(rank: int, lacking: str, given: dict[str, Any], folder: str) -> None:
    """A worker of two; the second is on a machine that does not have one of the inputs."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    asked = TrainSettings(**(given | ({lacking: f"{folder}/not here"} if rank else {})))
    shared = Place.of(f"{folder}/shared")
    try:
        Loop(Job(asked, asked.model, shared, 1, {}, Generations(shared, steps=1, every=1), 1, {}), Worker(rank, 2, 2, CPU))
    except InputError as error:
        Path(folder, f"refused-{rank}").write_text(str(error))
    dist.destroy_process_group()


@pytest.mark.parametrize("lacking", ["model", "examples", "corpus"])
def test_what_one_machine_lacks_is_refused_by_all_workers(tmp_path: Path, lacking: str) -> None:
    data = make_training_data(tmp_path / "data")
    make_tiny_encoder(["the red fox", "an old bridge of stone"], tmp_path / "tiny", 1)
    asked = data.settings(tmp_path / "o", model=str(tmp_path / "tiny"), workers=2, batch_size=4, precision="auto")
    run_ranks(begin_without, (lacking, asked.model_dump(exclude_unset=True), str(tmp_path)), 2)
    refused = [(tmp_path / f"refused-{rank}").read_text() for rank in (0, 1)]
    assert refused[0] == refused[1]
    assert "not here" in refused[0]


@pytest.mark.parametrize("done_in", ["fp32", "bf16"])
def test_a_worker_goes_on_in_the_precision_of_the_steps_done_in_this_run(tmp_path: Path, done_in: Precision) -> None:
    """By workers on nodes of another kind, which Ray started before this one: whatever is the first of this processor, one of the two is not."""
    data = make_training_data(tmp_path / "data")
    make_tiny_encoder(["the red fox", "an old bridge of stone"], tmp_path / "tiny", 1)
    asked = data.settings(tmp_path / "o", model=str(tmp_path / "tiny"), precision="auto")
    shared = Place.of(tmp_path / "shared")
    job = Job(asked, asked.model, shared, 9, {}, Generations(shared, steps=9, every=9), 9, {})
    assert Loop(job, Worker(0, 1, 1, CPU)).precision == choose_precision("auto", CPU)
    (shared / RUN / "checkpoint_5/state.json").write_text(json.dumps(asdict(State(done_in, step=5))))
    (shared / RUN / "checkpoint_manager_snapshot.json").write_text('{"checkpoint_results": [{"checkpoint_dir_name": "checkpoint_5"}]}')
    assert Loop(job, Worker(0, 1, 1, CPU)).precision == done_in


@pytest.mark.parametrize(
    ("by", "metric"), [("retriever", "mrr@10"), ("reranker", "mrr@10"), ("retriever", "recall@100"), ("reranker", "ndcg@10")]
)
def test_a_joint_training_keeps_the_best_step_of_the_model_and_metric_that_decide(tmp_path: Path, by: str, metric: str) -> None:
    data = make_training_data(tmp_path / "data")
    make_tiny_encoder(["the red fox", "an old bridge of stone"], tmp_path / "tiny", 1)
    reranker = make_reranker(tmp_path / "reranker", tmp_path / "tiny")
    qrels = data.root / "sample/qrels/dev"
    judged = read_table(qrels, "qrels").to_pandas().drop_duplicates("query_id")
    store = PassageStore(data.root / "sample/corpus")
    others = store.slice(0, 3, ["passage_id"])["passage_id"].to_pylist()
    found = [(query, [*others, passage]) for query, passage in zip(judged["query_id"], judged["passage_id"], strict=True)]
    run = [(query, passage, rank + 1, 4.0 - rank) for query, passages in found for rank, passage in enumerate(passages)]
    columns = dict(zip(("query_id", "passage_id", "rank", "score"), map(list, zip(*run, strict=True)), strict=True))
    write_table(tmp_path / "run", "run", pa.table(columns))
    dev = {"qrels": str(qrels), "run": str(tmp_path / "run"), "passages": 60, "by": by, "metric": metric, "patience": 2, "every": 1}
    asked = data.settings(tmp_path / "o", objective="joint", model=str(tmp_path / "tiny"), reranker=str(reranker), dev=dev)
    shared = Place.of(tmp_path / "shared")
    sets = method_of(asked).dev_sets(asked, store)
    loop = Loop(Job(asked, asked.model, shared, 9, sets, Generations(shared, steps=1, every=1), 9, {}), Worker(0, 1, 1, CPU))
    state, values = loop._measured(State("fp32", step=3))
    own = {"retriever": metric, "reranker": f"reranker {metric}".replace("recall@100", "ndcg@10")}
    assert set(own.values()) <= values.keys()
    assert values[own["retriever"]] != values[own["reranker"]], "the test tells them apart"
    assert (state.best_step, state.best) == (3, values[own[by]])
    again, _ = loop._measured(replace(state, step=5))
    assert (again.best_step, loop._stalled(again)) == (3, True), "patience is about the same metric"


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loop:
    """Of one worker, that makes new negatives of the weights after 3 steps, and learns from them after 6; with a patience of 2 measurements."""
    monkeypatch.setattr(notice, "node_leaves", lambda: False)
    data, shared = make_training_data(tmp_path / "data"), Place.of(tmp_path / "shared")
    make_tiny_encoder(["the red fox", "an old bridge of stone"], tmp_path / "tiny", 1)
    dev = {"qrels": str(data.root / "sample/qrels/dev"), "patience": 2, "every": 1}
    asked = data.settings(tmp_path / "o", model=str(tmp_path / "tiny"), dev=dev)
    return Loop(Job(asked, asked.model, shared, 9, {}, Generations(shared, 9, 3, behind=1), 9, {}), Worker(0, 1, 1, CPU))


@pytest.mark.parametrize(("best_step", "wanted"), [(1, False), (2, True)])
def test_a_training_that_ends_early_asks_for_no_new_negatives(loop: Loop, best_step: int, wanted: bool) -> None:
    """What ends it is the measurement at the boundary itself: the second one without a better metric, or the first."""
    state = loop._after(State("fp32", step=3, best=1.0, best_step=best_step))
    assert loop._stalled(state) is not wanted
    assert list(loop.job.generations.open()) == ([1] if wanted else [])


@pytest.mark.parametrize("method", ["hand_over", "is_decided"])
def test_new_negatives_outlast_a_store_that_is_away_for_a_while(loop: Loop, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """As a checkpoint does: worker 0 would lose the steps since the one before, and with it all others."""
    now, tries = 0.0, 0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def reached(generations: Generations, *given: Any) -> bool:
        nonlocal tries
        tries += 1
        if now < 600:
            raise StorageError("s3://b/k: failed for 120 s")
        return True

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(Generations, method, reached)
    if method == "hand_over":
        loop._hand_over(3)
    else:
        monkeypatch.setattr(Generations, "refuse_unmade", lambda *_: None)
        monkeypatch.setattr(Generations, "examples", lambda *_: loop.settings.examples)
        loop._take_generation(1)
        assert (loop.generation, loop.ends) == (1, False)
    assert 600 <= now < 660
    assert tries > 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dev": {"qrels": "q", "by": "reranker"}}, "dev.by reranker needs dev.run"),
        ({"dev": {"qrels": "q", "run": "r", "by": "reranker"}, "teacher": "static"}, "dev.by reranker .* static teacher"),
        ({"dev": {"qrels": "q", "by": "retriever"}, "objective": "retriever", "reranker": None}, "dev.by"),
        ({"dev": {"qrels": "q", "run": "r", "by": "reranker", "metric": "recall@100"}}, "dev.metric recall@100 is of a retriever"),
        (
            {"dev": {"qrels": "q", "run": "r", "metric": "recall@100"}, "objective": "reranker", "reranker": None},
            "dev.metric recall@100 is of a r",
        ),
        ({"dev": {"qrels": "q", "metric": "AP"}}, r"dev\.metric: input should be 'mrr@10', 'ndcg@10' or 'recall@100'"),
    ],
)
def test_a_best_step_by_a_reranker_that_is_not_measured_is_refused(changes: dict[str, Any], message: str) -> None:
    given = {"objective": "joint", "model": "m", "corpus": "c", "queries": "q", "examples": "e", "output": "o", "reranker": "r"} | changes
    with pytest.raises(InputError, match=message):
        TrainSettings(**{name: value for name, value in given.items() if value is not None})


def test_the_defaults_of_the_model_and_metric_that_decide_are_in_no_fingerprint() -> None:
    given = {"objective": "joint", "model": "m", "corpus": "c", "queries": "q", "examples": "e", "output": "o", "reranker": "r"}
    dev = {"qrels": "q", "run": "r"}
    assert not {"dev.by", "dev.metric"} & TrainSettings(**given, dev=dev).shaping().keys()
    assert TrainSettings(**given, dev={**dev, "metric": "ndcg@10"}).shaping()["dev.metric"] == "ndcg@10"
    assert TrainSettings(**given, dev={**dev, "by": "reranker"}).shaping()["dev.by"] == "reranker"
