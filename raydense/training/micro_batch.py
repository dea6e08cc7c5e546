"""`micro_batch: auto`: finds the most texts at once that fit in every worker's memory, before the first step.

On a CPU by the estimate of memory.py and the machine's free memory; on a GPU by trying the longest batch. With ZeRO 3 by the estimate
there, too: a model whose weights are shared out does not run before its engine is made.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import psutil
import torch
import torch.distributed as dist
from torch import nn

from raydense.errors import InputError
from raydense.runtime.limits import memory_free, memory_total
from raydense.runtime.session import joins_cluster
from raydense.storage import Place
from raydense.training.engine import offloads, shards_weights
from raydense.training.loop_settings import LoopSettings
from raydense.training.memory import MemoryEstimate
from raydense.training.piece_count import pieces_of, texts_of
from raydense.training.precision import DTYPES
from raydense.training.trial_batch import longest_batch, run_trial

# The rest stays free: the estimate may be off by a fifth, and Ray kills workers when a machine is nearly full.
_SHARE = 0.8


@dataclass(frozen=True)
class Kept:
    """The micro-batch that was found for a training, and what it was found for: with another of these, another one fits.

    `devices` are those of its workers, by `bounded_by`.
    """

    texts: int
    devices: list[str]
    activation_checkpointing: bool | None = None  # of 0.2: not kept

    def __str__(self) -> str:
        recomputing = f"with{'' if self.activation_checkpointing else 'out'} activation_checkpointing"
        return f"{self.texts} on {' and '.join(self.devices)}, {recomputing}"


def find_micro_batch(settings: LoopSettings, start: str, model: nn.Module, device: torch.device, on_machine: int) -> tuple[int, str]:
    """The most texts at once that fit on every worker, and the line to log; every worker calls this, with its `model` loaded.

    InputError, on all workers, if not even one text fits. `on_machine`: the workers of this machine.
    """
    together = dist.is_initialized() and dist.get_world_size() > 1
    estimate = MemoryEstimate(settings, start, device)
    if together:
        dist.barrier()  # so that no worker counts memory as free that another is about to load its model into
    if device.type == "cuda" and shards_weights(settings):
        mine = largest_by_estimate(estimate, int(_SHARE * torch.cuda.mem_get_info(device)[0]) + torch.cuda.memory_allocated(device))
    elif device.type == "cuda":
        mine = largest_by_trial(model.to(device).train(), estimate, device)
    else:
        mine = largest_by_estimate(estimate, memory_for(on_machine) + psutil.Process().memory_info().rss)
    found = torch.tensor(mine, device=device)
    if together:
        dist.all_reduce(found, op=dist.ReduceOp.MIN)
    if not found:
        raise too_little(estimate, settings)
    texts = int(found)
    return texts, f"micro_batch {texts} of {max(texts_of(settings).values())} texts: about {estimate.memory(texts)}"


def refuse_too_little(settings: LoopSettings, start: str) -> None:
    """InputError if workers on this machine's CPUs do not have the memory for even one text at a time."""
    estimate = MemoryEstimate(settings, start, torch.device("cpu"))
    if estimate.memory(1).total > memory_for(settings.workers):
        raise too_little(estimate, settings)


def too_little(estimate: MemoryEstimate, settings: LoopSettings) -> InputError:
    """The error if not even one text fits."""
    checkpointing = "" if settings.activation_checkpointing else ", --activation-checkpointing"
    return InputError(
        f"even one text at a time needs about {estimate.memory(1)}, which is more than {settings.workers} worker(s) have here",
        "micro_batch",
        f"give fewer workers, a smaller model, shorter texts{checkpointing}, or more memory",
    )


def out_of_memory(settings: LoopSettings) -> InputError:
    """The error if a GPU runs out of memory in the training."""
    auto = "" if settings.micro_batch == "auto" else ", or auto"
    fix = f"set a smaller one{auto}; or --activation-checkpointing, or DeepSpeed with --engine.offload; nvidia-smi shows who else uses it"
    return InputError("the GPU has too little free memory for the training", "micro_batch", fix)


def keep_half(place: Place, texts: int) -> None:
    """Keep half of the `texts` at once, which did not fit after all, for the workers that are started again."""
    if found := place.read_text():
        place.write_text(json.dumps(asdict(replace(Kept(**json.loads(found)), texts=max(1, texts // 2)))))


def refuse_too_little_to_offload(settings: LoopSettings, start: str, device: torch.device, on_machine: int) -> None:
    """InputError if this machine does not have the memory that its workers, `on_machine` of them, offload to."""
    if offloads(settings, device.type == "cuda"):
        needed, free = MemoryEstimate(settings, start, device).on_machine, memory_for(on_machine)
        if needed > free:
            each = f"for each of {on_machine} worker(s), which have {free / 2**30:.1f}"
            what = f"offload needs about {needed / 2**30:.1f} GiB of the machine's memory {each}"
            raise InputError(what, "engine.offload", "give a machine with more memory, more machines, or a smaller model")


def refuse_too_little_to_write(settings: LoopSettings, start: str) -> None:
    """InputError if this machine, where the trained model is written, has not the memory for it in float32, as its workers have.

    Of a cluster none of them may be on this machine, and with ZeRO 3 none holds it whole.
    """
    if shards_weights(settings) or joins_cluster():
        written = settings.model_copy(update={"precision": "fp32"})  # that of the workers may be one that no CPU trains in
        needed, most = MemoryEstimate(written, start, torch.device("cpu")).whole, memory_total()
        if needed > most:
            what = f"the trained model takes {needed / 2**30:.1f} GiB where it is written, and this machine has {most / 2**30:.1f}"
            raise InputError(what, "model", "run the command, or the job's own process (submit --entrypoint-memory), on a larger machine")


def choices(settings: LoopSettings) -> list[int]:
    """The candidates of auto: all texts at once, then smaller powers of two."""
    most = max(texts_of(settings).values())
    return [most, *(2**power for power in reversed(range((most - 1).bit_length())))]


def memory_for(workers: int) -> int:
    """Bytes for each of so many workers that start on this machine: most of what is available in it, or in its container."""
    return int(_SHARE * memory_free() / workers)


def bounded_by(device: torch.device, on_machine: int) -> str:
    """A worker's device and all its memory: of a CPU its share of the machine's, or of its container's."""
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        return f"{card.name} with {card.total_memory / 2**30:.1f} GiB"
    return f"CPU with {memory_total() / on_machine / 2**30:.1f} GiB"


def kept_micro_batch(place: Place, device: torch.device, on_machine: int) -> tuple[Kept | None, list[str]]:
    """What worker 0 finds at `place`, and the devices of all workers; the same on all, which all call this."""
    mine = place.read_text(), bounded_by(device, on_machine)
    found = [mine]
    if dist.is_initialized() and dist.get_world_size() > 1:
        found *= dist.get_world_size()
        dist.all_gather_object(found, mine)
    text = found[0][0]
    return Kept(**json.loads(text)) if text else None, sorted({device for _, device in found})


def largest_by_estimate(estimate: MemoryEstimate, available: int) -> int:
    """The largest candidate that needs at most `available` bytes; 0 if none does."""

    def fits(texts: int) -> bool:
        return estimate.memory(texts).total <= available

    most, *fewer = choices(estimate.settings)
    return most if fits(most) else _first(fewer, fits)  # on a CPU all texts mostly fit, and each estimate takes a second or more


def largest_by_trial(model: nn.Module, estimate: MemoryEstimate, device: torch.device) -> int:
    """The largest candidate whose longest batch fits on a GPU, forward and backward, next to what the engine will hold; 0 if none does."""
    return _first(choices(estimate.settings), lambda texts: _goes(model, estimate, texts, device))


def _goes(model: nn.Module, estimate: MemoryEstimate, texts: int, device: torch.device) -> bool:
    settings = estimate.settings.model_copy(update={"micro_batch": texts})
    needed = estimate.memory(texts)
    mixed = DTYPES[estimate.precision]
    try:
        # the model and its gradients are on the GPU in float32; what the engine needs beyond them is reserved
        held = torch.empty(max(0, needed.total - needed.activations - estimate.here), dtype=torch.uint8, device=device)
        with torch.autocast(device.type, mixed, enabled=estimate.precision != "fp32"):
            run_trial(model, longest_batch(model, settings, pieces_of(settings), device))
        del held
    except torch.OutOfMemoryError:
        return False
    finally:
        model.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)  # what a trial took is not what the training takes
    return True


def _first(falling: list[int], fits: Callable[[int], bool]) -> int:
    """The first that fits, in a list whose items all fit after some point; 0 if none does."""
    low, high = 0, len(falling)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(falling[middle]) else (middle + 1, high)
    return falling[low] if low < len(falling) else 0
