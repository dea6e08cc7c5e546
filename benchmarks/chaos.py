"""Runs a recipe on a cluster whose nodes, workers and driver are killed at random, and compares its artifacts with a quiet run's, byte for byte.

    PYTHONPATH=tests python benchmarks/chaos.py [--recipe FILE] [--set STAGE.KEY=VALUE]... [--seed N] [--quiet FOLDER] [--output FOLDER]

The cluster is this machine's: a head without CPUs, where the driver runs, and three nodes that are raylets of their own. The recipe runs
quietly first (or `--quiet` is such a run's output), then again while every 20 to 40 s a node is killed with all its workers, or hangs for
20 s; a new one joins some time after. In between some process of the job is killed: an actor, a task, or what Ray keeps for it, drawn by its
kind first. After half of the kills the driver is killed, and the same command run again; where it gives up by itself it is run again too, and
counted. Printed: the kills by kind, what was restarted, the seconds of both runs, and each stage's comparison. The seed decides the
moments, not what runs at them. Seconds are those of the command, with the start of Python and Ray. Exit code 1 where something differs, or nothing
was killed.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

from nodes import Nodes, name_of, send, several_nodes

ROOT = Path(__file__).parents[1]
_HANGS_S = 20


class Chaos:
    """Kills at random while a driver runs: a node every `every` seconds, a worker in between, the driver once after half of the kills."""

    def __init__(self, cluster: Nodes, rng: random.Random, every: tuple[float, float], least: int) -> None:
        self.cluster, self.rng, self.every, self.least = cluster, rng, every, least
        self.killed: collections.Counter[str] = collections.Counter()
        self.workers: collections.Counter[str] = collections.Counter()
        self._size, self._began = len(cluster.nodes), time.monotonic()
        self._due: list[tuple[float, str]] = []
        self._driver_killed = False
        self._after("node", *every)
        self._after("worker", *(second / 2 for second in every))

    def _after(self, what: str, low: float, high: float) -> None:
        self._due.append((time.monotonic() + self.rng.uniform(low, high), what))

    def step(self, driver: int) -> None:
        """Do what is due."""
        now = time.monotonic()
        for due in [due for due in self._due if due[0] <= now]:
            self._due.remove(due)
            {"node": self._node, "worker": self._worker, "join": self._join, "thaw": self._thaw}[due[1]]()
        if not self._driver_killed and 2 * sum(self.killed.values()) >= self.least:
            self._driver_killed = True
            os.killpg(driver, signal.SIGKILL)
            self._log("driver", "")

    def _node(self) -> None:
        self._after("node", *self.every)
        alive = [node for node in self.cluster.nodes if node.joined() and not node.frozen]
        if len(alive) < 2:
            return
        victim = self.rng.choice(alive)
        if self.rng.random() < 0.25:
            self._log("node hangs", f"{victim.name}, for {_HANGS_S} s")
            victim.freeze()
            self._after("thaw", _HANGS_S, _HANGS_S)
        else:
            self._log("node", f"{victim.name} with {', '.join(map(name_of, victim.workers())) or 'no work'}")
            victim.kill()
            self.cluster.nodes.remove(victim)
            self._after("join", 5, 15)

    def _worker(self) -> None:
        self._after("worker", *(second / 2 for second in self.every))
        by_kind = collections.defaultdict(list)
        for node in (self.cluster.head, *self.cluster.nodes):
            for process in node.workers():
                by_kind[re.sub(r"^ray::|\(.*", "", name_of(process))].append(process)
        if by_kind:
            kind = self.rng.choice(sorted(by_kind))
            send(self.rng.choice(by_kind[kind]), signal.SIGKILL)
            self.workers[kind] += 1
            self._log("worker", kind)

    def _join(self) -> None:
        """Start nodes in place of lost ones, one at a time; one may fail to start on a very busy machine."""
        nodes = self.cluster.nodes
        for node in [node for node in nodes if not node.joined() and node.process.poll() is not None]:
            nodes.remove(node)
        if len(nodes) < self._size and all(node.joined() for node in nodes):
            nodes.append(self.cluster.begin())
            self._tell(f"{nodes[-1].name} begins to join")
        if not all(node.joined() for node in nodes):
            self._after("join", 2, 2)

    def _thaw(self) -> None:
        for node in self.cluster.nodes:
            if node.frozen:
                node.thaw()

    def _log(self, kind: str, what: str) -> None:
        self.killed[kind] += 1
        self._tell(f"{sum(self.killed.values())}: {kind} {what}")

    def _tell(self, line: str) -> None:
        print(f"  {time.monotonic() - self._began:6.1f} s  {line}", flush=True)


def command(asked: argparse.Namespace, output: Path) -> list[str]:
    changes = [word for change in asked.set for word in ("--set", change)]
    return ["-m", "raydense", "run", asked.recipe, "--output", str(output), *changes]


def run(cluster: Nodes, words: list[str], log: Path, chaos: Chaos | None) -> tuple[float, int, int]:
    """Run the command until it is done; returns its seconds, how often it was started, and how often it had given up."""
    began, begun, gave_up, code = time.monotonic(), 0, 0, -1
    while code:
        begun += 1
        driver = cluster.driver(*words, log=log, cwd=ROOT)
        while (code := driver.poll()) is None:  # type: ignore[assignment]
            time.sleep(0.2)
            if chaos:
                chaos.step(driver.pid)
        gave_up += code > 0
        if code > 0 and (chaos is None or gave_up > 5):
            raise RuntimeError(f"exit code {code}:\n{log.read_text()[-3000:]}")
    return time.monotonic() - began, begun, gave_up


def differences(quiet: Path, chaotic: Path) -> list[str]:
    """A line for each file and manifest of a stage that differs from the quiet run's; each file is compared with its entry in the manifest."""
    stages = sorted(path.parent.relative_to(quiet) for path in quiet.rglob("manifest.json"))
    return [line for stage in stages for line in _stage(quiet / stage, chaotic / stage)]


def _stage(quiet: Path, chaotic: Path) -> list[str]:
    if not (chaotic / "manifest.json").is_file():
        return [f"{quiet.name}: is missing"]
    wanted, found = (json.loads((folder / "manifest.json").read_text()) for folder in (quiet, chaotic))
    here = {str(path.relative_to(chaotic)) for path in chaotic.rglob("*") if path.is_file() and path.name != "manifest.json"}
    sums = {file["path"]: file["sha256"] for file in wanted["files"]}
    lines = [f"{quiet.name}: {key} differs" for key in ("kind", "rows", "made_from", "fingerprint") if wanted[key] != found[key]]
    for path, sha256 in sums.items():
        there = chaotic / path
        if not there.is_file() or hashlib.sha256(there.read_bytes()).hexdigest() != sha256:
            lines.append(f"{quiet.name}: {path} differs")
    inner = tuple(str(path.parent.relative_to(chaotic)) for path in chaotic.rglob("manifest.json") if path.parent != chaotic)
    over = sorted(path for path in here - sums.keys() if not path.startswith(inner))
    return lines + [f"{quiet.name}: {path} is left over" for path in over]


def restarted(cluster: Nodes) -> int:
    """How often Ray restarted an actor, over all jobs of the cluster."""
    os.environ.update(cluster.environment)
    import ray

    from raydense.runtime.ray_internals import actors_of

    ray.init(cluster.address, logging_level="ERROR", log_to_driver=False)
    return sum(actor["NumRestarts"] for actor in actors_of())


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default=str(ROOT / "jobs" / "recipes" / "quickstart.yaml"))
    parser.add_argument("--set", action="append", default=[], help="as of `raydense run`, for both runs")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--cpus", type=int, default=2, help="of each node")
    parser.add_argument("--every", type=float, nargs=2, default=(20.0, 40.0), help="seconds between two nodes' ends, least and most")
    parser.add_argument("--kills", type=int, default=10, help="the driver is killed after half of so many")
    parser.add_argument("--quiet", type=Path, help="the output of a run that nobody disturbed")
    parser.add_argument("--output", type=Path, help="where both runs go; by default a folder that is deleted")
    return parser.parse_args()


def main() -> None:
    asked = parsed()
    print(f"seed {asked.seed}, {asked.nodes} nodes of {asked.cpus} CPUs", flush=True)
    with tempfile.TemporaryDirectory(prefix="rd-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        output = (asked.output or Path(folder)).resolve()
        quiet = asked.quiet or output / "quiet"
        refuse_earlier([output / "chaos", *([] if asked.quiet else [quiet])])
        output.mkdir(parents=True, exist_ok=True)
        with several_nodes(Path(folder), asked.nodes, asked.cpus) as cluster:
            seconds = "not measured here"
            if asked.quiet is None:
                seconds = f"{run(cluster, command(asked, quiet), output / 'quiet.log', None)[0]:.0f}"
            print(
                f"quiet: {seconds} s, {sum(json.loads((quiet / 'seconds.json').read_text()).values()):.0f} s of it in its stages",
                flush=True,
            )
            chaos = Chaos(cluster, random.Random(asked.seed), tuple(asked.every), asked.kills)
            took, begun, gave_up = run(cluster, command(asked, output / "chaos"), output / "chaos.log", chaos)
            again = restarted(cluster)
        show(quiet, output / "chaos", (output / "chaos.log").read_text(), chaos)
        print(f"seconds: quiet {seconds}, under chaos {took:.0f}; the command was begun {begun} times, and gave up {gave_up} times")
        print(f"actors begun again by Ray: {again}")
        if not chaos.killed:
            print("the run was over before the first kill: nothing is shown")
        sys.exit(bool(differences(quiet, output / "chaos")) or not chaos.killed)


def refuse_earlier(outputs: list[Path]) -> None:
    """A run that is done would end at once, without a kill."""
    for output in outputs:
        if output.exists():
            raise SystemExit(f"{output}: is there from an earlier run; give another --output")


def show(quiet: Path, chaotic: Path, log: str, chaos: Chaos) -> None:
    """The table of docs/benchmarks/faults.md."""
    print("\n| killed | times |\n| --- | --- |")
    for kind, times in chaos.killed.items():
        print(f"| {kind} | {times} |")
    print("workers:", ", ".join(f"{kind} {times}" for kind, times in chaos.workers.most_common()))
    print("trainings that the driver continued:", log.count("its workers were lost"))
    print("\n| stage | files | equal |\n| --- | --- | --- |")
    for manifest in sorted(quiet.glob("*/manifest.json"), key=lambda path: path.stat().st_mtime):
        wrong = _stage(manifest.parent, chaotic / manifest.parent.name)
        print(f"| {manifest.parent.name} | {len(json.loads(manifest.read_text())['files'])} | {'; '.join(wrong) or 'yes'} |")
    print()


if __name__ == "__main__":
    main()
