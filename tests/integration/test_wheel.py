"""The wheel: built from this checkout, installed in a folder, and run from another one, as somebody who has no checkout would."""

import json
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from warm_worker import own_ray_environment

ROOT = Path(__file__).parents[2]
SMALL = """base: {quickstart}
stages:
  data: {{passages: 700, shard_rows: 350, train_queries: 300, dev_queries: 20, test_queries: 30}}
  retriever-1: {{max_steps: 4}}
  negatives-2: null
  retriever-2: null
  vectors-2: null
  dense-2: null
  found-2: null
  negatives-3: null
  reranker-1: null
  negatives-4: null
  reranker: null
  found-2-test: null
  reranked: null
  report: {{run: [BM25=$bm25, retriever 1=$found-1], models: [retriever 1=$retriever-1]}}
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, timeout=300)
    (built,) = folder.glob("raydense-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The folder that the wheel is installed in; its dependencies are those of this Python."""
    folder = tmp_path_factory.mktemp("installed")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(folder), str(wheel)]
    subprocess.run(install, check=True, timeout=300)
    return folder


def _command(installed: Path, *words: str) -> list[str]:
    return [sys.executable, str(installed / "bin" / "raydense"), *words]


def _environment(installed: Path) -> dict[str, str]:
    return own_ray_environment() | {"PYTHONPATH": str(installed)}


def _call(installed: Path, folder: Path, *words: str) -> str:
    done = subprocess.run(_command(installed, *words), capture_output=True, text=True, cwd=folder, env=_environment(installed), timeout=540)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_the_wheel_holds_the_package_the_recipes_and_the_licence(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    recipes = {path.name for path in (ROOT / "jobs" / "recipes").glob("*.yaml")}
    assert {name.rpartition("/")[2] for name in names if name.startswith("raydense/recipes/files/")} == recipes
    code = {str(path.relative_to(ROOT)) for path in (ROOT / "raydense").rglob("*.py")}
    assert code <= names
    assert "raydense/evaluation/report.html.j2" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "License-Expression: Apache-2.0" in metadata


def test_the_command_runs_outside_the_checkout(installed, tmp_path):
    where = [sys.executable, "-c", "import raydense; print(raydense.__file__, raydense.__version__)"]
    found = subprocess.run(where, capture_output=True, text=True, cwd=tmp_path, env=_environment(installed), check=True).stdout.split()
    assert Path(found[0]).is_relative_to(installed)
    assert _call(installed, tmp_path, "--version") == f"raydense {found[1]}\n"
    rows = json.loads(_call(installed, tmp_path, "plan", "quickstart", "--output", "out", "--json"))["stages"]
    assert rows[0]["stage"] == "data"
    assert rows[-1]["stage"] == "report"


@pytest.mark.long
def test_the_demo_begins_outside_the_checkout_and_ends_by_ctrl_c(installed, tmp_path):
    process = subprocess.Popen(
        _command(installed, "demo"),
        cwd=tmp_path,
        env=_environment(installed),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        printed = []
        for line in process.stderr:
            printed.append(line)
            if "retriever-1" in line:
                break
        assert (tmp_path / "demo" / "data" / "manifest.json").exists(), "".join(printed)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
        assert process.returncode == 130
    finally:
        process.kill()


@pytest.mark.long
def test_a_recipe_trains_and_searches_outside_the_checkout(installed, tmp_path):
    quickstart = installed / "raydense" / "recipes" / "files" / "quickstart.yaml"
    (tmp_path / "small.yaml").write_text(SMALL.format(quickstart=quickstart))
    result = json.loads(_call(installed, tmp_path, "run", "small.yaml", "--output", "out", "--json"))
    assert list(result["result"]["runs"]) == ["BM25", "retriever 1"]
    assert (tmp_path / "out" / "report" / "report.html").stat().st_size > 10_000
