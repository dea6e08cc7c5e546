"""What the allocator of CPU workers is worth: the same training steps and encoding under glibc's malloc and under Ray's jemalloc.

    python benchmarks/allocator.py [--queries 16] [--passages 32] [--tokens 256] [--steps 4]

Two processes, one after the other, turn by turn: torch alone, an encoder of MiniLM's shape with random weights, one environment each
(`raydense.runtime.allocator`). Printed: median seconds of a step, passages a second of encoding, the peak memory, and whether the
loss of the last step is the same to the last bit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

from watched import held_at_most

from raydense.runtime.allocator import cpu_worker_env

ROUNDS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("queries", 16), ("passages", 32), ("tokens", 256), ("steps", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        print(json.dumps(measure(given.queries, given.passages, given.tokens, given.steps)))
        return
    plain = {key: value for key, value in os.environ.items() if key not in ("LD_PRELOAD", "MALLOC_CONF")}
    os.environ.pop("LD_PRELOAD", None)
    if not cpu_worker_env():
        raise SystemExit("Ray ships no jemalloc here: nothing to compare")
    ways = {"glibc": plain, "jemalloc": plain | cpu_worker_env()}
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, env in ways.items():
            done = subprocess.run([sys.executable, *sys.argv, "--inside"], env=env, capture_output=True, text=True, check=True)
            found[way].append(json.loads(done.stdout))
    for way, rounds in found.items():
        middle = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
        print(
            f"{way:9} {middle['step_s']:.2f} s a step, {middle['passages_per_s']:.1f} passages/s encoded, {middle['peak_gib']:.1f} GiB at most"
        )
    losses = {one["loss"] for rounds in found.values() for one in rounds}
    print("the same losses" if len(losses) == 1 else f"other losses: {losses}")


def measure(queries: int, passages: int, tokens: int, steps: int) -> dict[str, float]:
    """Train `steps` steps and encode, in this process; the first step is left out."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(1)
    shape = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    model = BertModel(BertConfig(**shape), add_pooling_layer=False).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    texts = [torch.randint(1000, 30_000, (count, length)) for count, length in ((queries, 32), (passages, tokens))]
    wanted = torch.arange(queries)
    seconds, loss = [], torch.zeros(())
    for _ in range(steps + 1):
        begun = time.perf_counter()
        q, p = (model(input_ids=ids).last_hidden_state.mean(dim=1) for ids in texts)
        loss = torch.nn.functional.cross_entropy(q @ p.T, wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - begun)
    peak = held_at_most() / 2**30
    model.eval()
    with torch.inference_mode():
        model(input_ids=texts[1])
        begun = time.perf_counter()
        for _ in range(steps):
            model(input_ids=texts[1])
    rate = steps * passages / (time.perf_counter() - begun)
    return {"step_s": statistics.median(seconds[1:]), "passages_per_s": rate, "peak_gib": peak, "loss": loss.item()}


if __name__ == "__main__":
    main()
