"""A metric of a user, given as `package.module:function@k` or by an entry point of an installed package."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raydense as rd
from raydense.data.tables import commit_table
from raydense.errors import InputError
from raydense.evaluation.metrics import Judgements, parse_metrics
from raydense.storage import Draft, provenance

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
QRELS = {"query_id": ["q0", "q1", "q1", "q2"], "passage_id": ["p0", "p1", "p3", "p2"], "relevance": [1, 2, 1, 1]}
RUN = {
    "query_id": ["q0", "q0", "q1", "q1", "q1"],
    "passage_id": ["p9", "p0", "p1", "p7", "p3"],
    "rank": [1, 2, 1, 2, 3],
    "score": pa.array([0.75, 0.5, 3.0, 2.0, 1.5], pa.float32()),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's modules, with a run and its judgements."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for kind, table in {"qrels": QRELS, "run": RUN}.items():
        draft = Draft.open(tmp_path / kind, kind, {"stage": "test"})
        commit_table(draft, f"{kind}.parquet", pa.table(table))
        draft.finish(len(table["query_id"]))
    return tmp_path


def code_of_the_page() -> str:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]


def settings(folder: Path, *metrics: str, output: str = "report") -> rd.EvaluateSettings:
    given: dict[str, Any] = {"run": [str(folder / "run")], "qrels": str(folder / "qrels"), "metrics": list(metrics)}
    return rd.EvaluateSettings(output=str(folder / output), **given)


def measured(folder: Path, *metrics: str, output: str = "report") -> dict[str, float]:
    report = rd.evaluate(settings(folder, *metrics, output=output))
    return json.loads((report.path / "metrics.json").read_text())["metrics"]


def test_the_example_of_the_page(folder: Path) -> None:
    """The share of a query's grades that the first passages have, which is recall where all grades are 1; q2 has no hit and counts 0."""
    (folder / "gained.py").write_text(code_of_the_page())
    assert measured(folder, "nDCG@10", "gained:gained@2", "gained:gained") == {
        "nDCG@10": pytest.approx((0.6309 + 0.9502) / 3, abs=1e-4),
        "gained:gained@2": pytest.approx((1 + 2 / 3 + 0) / 3),
        "gained:gained": pytest.approx(2 / 3),
    }
    values = pq.read_table(folder / "report/per_query.parquet")
    assert values["gained:gained@2"].to_pylist() == pytest.approx([1, 2 / 3, 0])


def test_what_a_metric_is_given(folder: Path) -> None:
    """With another metric, and alone, where ir-measures is not asked."""
    (folder / "given.py").write_text("CALLS = []\ndef noted(*given):\n    CALLS.append(given)\n    return 1\n")
    judgements = Judgements(pa.table(QRELS), ["RR@10", "given:noted@2"], "qrels")
    assert judgements.measure(pa.table(RUN), "run").means["given:noted@2"] == pytest.approx(2 / 3)
    import given

    assert given.CALLS == [("q0", {"p9": 0.75, "p0": 0.5}, {"p0": 1}), ("q1", {"p1": 3.0, "p7": 2.0}, {"p1": 2, "p3": 1})]
    assert measured(folder, "given:noted") == {"given:noted": pytest.approx(2 / 3)}


def test_weights_are_tuned_for_it(folder: Path) -> None:
    (folder / "tuned_for.py").write_text(code_of_the_page())
    runs = [f"a={folder}/run", f"b={folder}/run"]
    asked = rd.FuseSettings(run=runs, qrels=str(folder / "qrels"), metric="tuned_for:gained@2", output=str(folder / "fused"))
    assert rd.fuse(asked).summary["dev"]["fused"] == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert provenance("fuse", asked)["metrics_code"]


def test_an_installed_package_gives_its_metric_a_name(folder: Path) -> None:
    (folder / "gained_installed.py").write_text(code_of_the_page())
    info = folder / "gained_installed-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gained-installed\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[raydense.metrics]\nGained = gained_installed:gained\nRR = gained_installed:gained\n")
    assert measured(folder, "Gained@2", "RR@10") == {"Gained@2": pytest.approx((1 + 2 / 3 + 0) / 3), "RR@10": pytest.approx(0.5)}
    with pytest.raises(InputError, match="unknown metric 'Gaind@2'; did you mean 'Gained@2'"):
        parse_metrics(["Gaind@2"])


def test_an_edited_metric_makes_its_report_stale(folder: Path) -> None:
    file = folder / "gained_edited.py"
    file.write_text(code_of_the_page())
    first = measured(folder, "gained_edited:gained@2")
    assert measured(folder, "gained_edited:gained@2") == first
    file.write_text(f"{code_of_the_page()}\n# edited\n")
    with pytest.raises(InputError, match=r"was made from something else \(metrics_code: "):
        measured(folder, "gained_edited:gained@2")
    assert provenance("evaluate", settings(folder, "RR@10", output="o")).keys() == {"stage", "settings", "inputs", "names"}


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("m_lacks:mine", "x = 1", "metrics: m_lacks has no mine; give package.module:function"),
        ("m_class:mine", "class mine: pass", "metrics: m_class:mine is no function; write one as docs/extending.md"),
        ("m_two:mine", "def mine(a, b): pass", r"metrics: m_two:mine does not take what a metric is given \(too many positional"),
        ("m_cut:mine@ten", "def mine(a, b, c): pass", "metrics: cannot read metric 'm_cut:mine@ten'; write .* as m_cut:mine@10"),
        ("m_cut0:mine@0", "def mine(a, b, c): pass", "metrics: 'm_cut0:mine@0' has a cutoff of 0; give one from 1"),
        (
            "m_fault:mine",
            "\nx = 1 / 0\ndef mine(a, b, c): pass",
            r"^{folder}/m_fault\.py:2: ZeroDivisionError: division by zero; correct it",
        ),
        ("m_none:mine@5", "def mine(a, b, c): pass", "^m_none:mine: gives None for query 'q0'; return a finite number"),
        ("m_nan:mine", "def mine(a, b, c): return float('nan')", "^m_nan:mine: gives nan for query 'q0'"),
        (
            "m_line:mine",
            "def mine(a, b, c):\n    return b['p1']\n",
            r"^{folder}/m_line\.py:2: KeyError: 'p1'; correct the metric m_line:mine, or what it reads",
        ),
    ],
)
def test_a_fault_is_one_line(folder: Path, name: str, code: str, message: str) -> None:
    (folder / f"{name.partition(':')[0]}.py").write_text(code)
    with pytest.raises(InputError, match=message.replace("{folder}", re.escape(str(folder)))) as caught:
        measured(folder, "RR@10", name)
    assert "\n" not in str(caught.value)
