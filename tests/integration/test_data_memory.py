"""Peak memory of stages that read or write a corpus: it does not grow with the corpus. Each runs in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from raydense.data.store import CorpusWriter
from raydense.storage import Draft

# in KiB; not ru_maxrss, which begins with what the test's own process holds
ROWS_AND_PEAK = "print(made.rows, open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"


def test_a_hundred_thousand_passages_in_flat_memory(tmp_path: Path) -> None:
    script = (
        "import sys; from raydense.data.sample import sample; from raydense.data.settings import SampleSettings;"
        "made = sample(SampleSettings(output=sys.argv[1], passages=int(sys.argv[2]), shard_rows=5000));" + ROWS_AND_PEAK
    )
    grown = []
    for count in (20_000, 100_000):
        run = [sys.executable, "-c", script, str(tmp_path / str(count)), str(count)]
        rows, rss = subprocess.run(run, check=True, capture_output=True, text=True).stdout.split()
        assert int(rows) >= count
        grown.append(int(rss))
    # 80,000 more passages are 10 MB of text and, as Python strings, 40 MB; the hashes that are kept are 1.3 MB
    assert grown[1] - grown[0] < 25_000, f"peak memory {grown} KiB"


def test_two_hundred_thousand_passages_stay_on_disk(tmp_path: Path) -> None:
    writer = CorpusWriter(Draft.open(tmp_path / "c", "corpus", {}), 50_000)
    for start in range(0, 200_000, 20_000):
        rows = range(start, start + 20_000)
        writer.add(
            pa.table({"passage_id": [f"p{i}" for i in rows], "title": [""] * 20_000, "text": [f"{i} " + "word " * 100 for i in rows]})
        )
    writer.finish()
    script = (
        "import sys, numpy as np, pyarrow as pa\n"
        "from raydense.data.lookup import hash_strings\n"
        "from raydense.data.store import PassageStore\n"
        "hash_strings(pa.array(['x']))\n"
        "own = lambda: next(int(l.split()[1]) for l in open('/proc/self/status') if l.startswith('RssAnon'))\n"
        "before = own()\n"
        "s = PassageStore(sys.argv[1]); assert len(s) == 200_000\n"
        "assert s.rows_of(pa.array(['p199999', 'none'])).tolist() == [199_999, -1]\n"
        "assert s.passages(np.array([123_456]))[0].startswith('123456 word')\n"
        "print(own() - before)\n"
    )
    grown = subprocess.run([sys.executable, "-c", script, str(tmp_path / "c")], check=True, capture_output=True, text=True).stdout
    assert int(grown) < 20_000, "KiB of own memory; the passages are 100 MB"


@pytest.mark.long
def test_five_times_the_documents_in_flat_memory(tiny_folder: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from raydense.inference.split import split; from raydense.inference.settings import SplitSettings;"
        "made = split(SplitSettings(corpus=sys.argv[1], model=sys.argv[2], output=sys.argv[3], shard_rows=2000));" + ROWS_AND_PEAK
    )
    text = "What causes the fever? Rivers freeze in winter.  Old bridges of stone carry no one home! " * 27
    grown = []
    for count in (1_000, 5_000):
        writer = CorpusWriter(Draft.open(tmp_path / f"c{count}", "corpus", {}), 1_000)
        writer.add(pa.table({"passage_id": [f"d{i}" for i in range(count)], "title": [""] * count, "text": [text] * count}))
        corpus = str(writer.finish().path)
        run = [sys.executable, "-c", script, corpus, str(tiny_folder), str(tmp_path / f"m{count}")]
        made, peak = map(int, subprocess.run(run, check=True, capture_output=True, text=True).stdout.split())
        assert made >= 3 * count
        grown.append(peak)
    # 4,000 more documents have 2 million tokens, 200 MB and more as the tokenizer gives them, and 10 MB of text, which is mapped
    assert grown[1] - grown[0] < 60_000, f"peak memory {grown} KiB"
