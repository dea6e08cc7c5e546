"""What actors of a stage on Ray Data claim, held against what nodes have, without Ray."""

from __future__ import annotations

import pytest

from raydense.inference.layout import capacity, lack, lack_to_tokenise, sizes

HEAD, WORKER, V100 = {"memory": 8.0}, {"CPU": 4.0}, {"CPU": 8.0, "GPU": 1.0}


@pytest.mark.parametrize(
    ("nodes", "gpus", "cpus", "message"),
    [
        ([HEAD, WORKER], 1.0, 1.0, "an actor is to have 1 GPUs, and of 2 nodes none has more than 0"),
        ([V100, V100], 2.0, 1.0, "an actor is to have 2 GPUs, and of 2 nodes none has more than 1"),
        ([WORKER, WORKER], 0.0, 6.0, "an actor is to have 6 CPUs, and of 2 nodes none has more than 4"),
        ([HEAD, WORKER], 0.0, 4.0, "an actor is to have 4 CPUs, which leaves 0 to tokenise, and that needs 0.5"),
        ([HEAD], 0.0, 0.5, "an actor is to have 0.5 CPUs, and of 1 nodes none has more than 0"),
    ],
)
def test_what_no_node_has_is_reported(nodes: list[dict[str, float]], gpus: float, cpus: float, message: str) -> None:
    fault = lack(nodes, gpus, cpus)
    assert fault is not None
    assert message in str(fault)
    assert f"{'gpus' if gpus else 'cpus'}_per_actor" in str(fault)


@pytest.mark.parametrize(("gpus", "cpus"), [(1.0, 64.0), (0.5, 1.0), (0.0, 4.0), (0.0, 8.0)])
def test_what_one_node_has_is_enough(gpus: float, cpus: float) -> None:
    assert lack([HEAD, WORKER, V100], gpus, cpus) is None


def test_gpus_whose_machines_have_no_cpu_for_tasks_are_reported() -> None:
    bare = {"CPU": 0.25, "GPU": 8.0}
    assert "is to have 0.5 CPUs, and of 2 nodes none has more than 0.25" in str(lack_to_tokenise([HEAD, bare]))
    assert lack_to_tokenise([bare, WORKER]) is None


@pytest.mark.parametrize(
    ("nodes", "gpus", "cpus", "actors"),
    [
        ([WORKER], 0.0, 1.0, 3),  # the fourth would leave none to tokenise
        ([WORKER], 0.0, 1.5, 2),
        ([WORKER], 0.0, 0.25, 14),
        ([HEAD, WORKER, WORKER], 0.0, 4.0, 1),
        ([HEAD, WORKER, WORKER], 0.0, 3.0, 2),
        ([V100, V100], 1.0, 8.0, 2),
        ([V100], 0.25, 1.0, 4),
        ([HEAD, WORKER], 1.0, 1.0, 0),
    ],
)
def test_so_many_actors_fit_next_to_the_tokenise_tasks(nodes: list[dict[str, float]], gpus: float, cpus: float, actors: int) -> None:
    assert capacity(nodes, gpus, cpus) == actors


@pytest.mark.parametrize(
    ("concurrency", "pending", "fit", "free", "apart", "joined", "at_once", "expected"),
    [
        ((1, 0), 200, 3, 3, 1, False, False, (1, 1, 1)),  # one machine: an actor takes all of its cores
        ((1, 0), 200, 4, 4, 4, False, False, (1, 4, 4)),  # and all of its GPUs, at once
        ((2, 0), 200, 3, 3, 1, False, False, (2, 2, 2)),
        ((1, 0), 200, 8, 8, 2, True, False, (1, 8, 200)),  # a cluster: all that is there, and what it adds
        ((1, 0), 200, 8, 2, 2, True, False, (1, 2, 200)),  # others hold the rest, perhaps for long
        ((1, 0), 200, 8, 0, 2, True, False, (1, 1, 200)),
        ((1, 6), 200, 8, 8, 2, True, False, (1, 6, 6)),
        ((4, 6), 200, 2, 2, 2, True, False, (2, 2, 6)),  # more would wait for nodes that may never come
        ((1, 0), 5, 8, 8, 2, True, False, (1, 5, 5)),  # none without a file
        ((1, 0), 200, 0, 0, 2, True, False, (1, 1, 200)),  # nodes come when an actor asks for them
        ((1, 40), 200, 4, 4, 2, True, True, (1, 40, 40)),  # and all of them at once, where that is known
        ((1, 40), 8, 4, 0, 2, True, True, (1, 8, 8)),
    ],
)
def test_a_pool_starts_at_the_size_of_what_is_there_or_of_what_it_asks_for(
    concurrency: tuple[int, int], pending: int, fit: int, free: int, apart: int, joined: bool, at_once: bool, expected: tuple[int, int, int]
) -> None:
    assert sizes(concurrency, pending, fit, free, apart, joined, at_once) == expected
