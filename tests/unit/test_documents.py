"""What the documents show: commands parse, links and anchors resolve, the passage shown first for HTTP is the right one, README stays short."""

import ast
import re
import shlex
import sys
from pathlib import Path

import click
import pyarrow as pa
import pytest
from beir_sets import make_set

import raydense as rd
from raydense.cli import app
from raydense.cli.asking import read_search
from raydense.cli.flags import read
from raydense.cli.recipes import read_recipe
from raydense.cli.suite import read_evaluate
from raydense.data.tables import commit_table, read_table
from raydense.recipes.recipe import Recipe, plan
from raydense.recipes.stage import VERBS
from raydense.storage import Draft

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "cluster" / "README.md"]
THE_READERS = {"raydense/training/methods/margin.py"}  # files that a reader is to write: the worked example of docs/methods.md
# the worked examples, which test_training_methods_page.py, test_data_own_formats.py and test_evaluation_own_metrics.py run
_OF_EXAMPLES = ("margin:Margin", "faq:Faq", "gain:gained")
JOBS = sorted(ROOT.glob("jobs/*.py"))
SHELL = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.M | re.S)
# in running text: what begins with a command and leaves nothing out
INLINE = re.compile(r"`((?:PYTHONPATH=tests )?(?:raydense|python benchmarks/|python -m raydense) ?[^`]*)`", re.S)


def _commands(file: Path) -> list[list[str]]:
    """The words of each command of raydense, or of one of its scripts, that a document or a job's docstring shows."""
    if file.suffix == ".py":
        lines = str(ast.get_docstring(ast.parse(file.read_text()))).replace("\\\n", " ").splitlines()
        lines = [line for line in lines if re.match(r" +(raydense|ray|python) ", line)]
    else:
        text = file.read_text()
        lines = "".join(SHELL.findall(text)).replace("\\\n", " ").splitlines()
        lines = [
            line for line, after in zip(lines, [*lines, ""][1:], strict=True) if not after.startswith("raydense: ")
        ]  # shown as refused
        inline = [" ".join(words.split()) for words in INLINE.findall(SHELL.sub("", text))]
        lines += [line for line in inline if not re.search(r"\.\.\.|VERB|\[--|NAME\b(?!\.yaml)| \||^raydense( [a-z-]+){1,2}$", line)]
    found = []
    for line in lines:
        for part in line.split("&&"):
            words = shlex.split(part.removeprefix("$ "), comments=True)
            words = words[words.index("--") + 1 :] if words[:3] == ["ray", "job", "submit"] else words
            words = [word for place, word in enumerate(words) if not (re.match(r"[A-Z_]+=", word) and place == 0)]
            words = words[2:] if words[:2] == ["python", "-m"] else words
            ours = words[:1] == ["raydense"] or (words[:1] == ["python"] and words[1].startswith(("jobs/", "benchmarks/")))
            if ours:
                found.append(words)
    return found


def _check(words: list[str]) -> None:
    """Verb and flags are there, and the settings can be read from them as the command line does; a script takes its arguments."""
    if words[0] == "python":
        assert (ROOT / words[1]).is_file(), words[1]
        if words[1].startswith("jobs/"):
            _arguments_of(words[1], words[2:])
        return
    command: click.Command = app
    verb, rest = "raydense", words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        verb, *rest = rest
        found = command.commands.get(verb)
        assert found is not None, f"no verb {verb!r}"
        command = found
    if isinstance(command, click.Group) or rest in (["--help"], ["--version"], ["--list"]):
        return
    if any(example in word for word in rest for example in _OF_EXAMPLES):
        return
    given = command.make_context(verb, list(rest)).params
    if words[1] == "submit":
        return
    if verb in VERBS:
        keys = {key: value for key, value in given.items() if key not in ("config", "as_json", "address")}
        own = {"evaluate": read_evaluate, "search": read_search}
        own.get(verb, lambda config, flags: read(VERBS[verb].settings, config, flags))(None, keys)
    elif verb in ("run", "plan") and re.match(r"(jobs/recipes/)?[a-z0-9-]+(\.yaml)?$", given["recipe"]):
        recipe = given["recipe"].removeprefix("jobs/recipes/").removesuffix(".yaml")
        file = ROOT / "jobs" / "recipes" / f"{recipe}.yaml"
        assert file.is_file(), file.name
        if given["changes"]:  # without them all recipes are read by test_recipes_recipe.py and test_recipes_sweep.py
            read_recipe(str(file), given["output"], given["changes"])


def _arguments_of(script: str, arguments: list[str]) -> None:
    names: dict[str, object] = {"__name__": "shown"}
    exec(compile((ROOT / script).read_text(), script, "exec"), names)
    before, sys.argv = sys.argv, [script, *arguments]
    try:
        names["_arguments"]()
    finally:
        sys.argv = before


@pytest.mark.parametrize("file", [*DOCUMENTS, *JOBS], ids=lambda file: str(file.relative_to(ROOT)))
def test_commands_that_are_shown_parse(file):
    for words in _commands(file):
        try:
            _check(words)
        except click.ClickException as error:
            pytest.fail(f"{shlex.join(words)}: {error.format_message()}", pytrace=False)
        except (rd.InputError, SystemExit, AssertionError) as error:
            pytest.fail(f"{shlex.join(words)}: {error}", pytrace=False)


def test_a_wrong_verb_flag_and_value_are_found():
    with pytest.raises(AssertionError, match="no verb 'encod'"):
        _check(["raydense", "encod", "--model", "m"])
    with pytest.raises(click.NoSuchOption):
        _check(["raydense", "encode", "--modell", "m", "--corpus", "c", "--output", "o"])
    with pytest.raises(rd.InputError, match="MIN,MAX"):
        _check(["raydense", "encode", "--model", "m", "--corpus", "c", "--output", "o", "--concurrency", "8,1"])
    with pytest.raises(SystemExit):
        _check(["python", "jobs/search_client.py", "--pool", "p"])


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_flag_that_is_named_alone_takes_no_true_or_false(file):
    assert not re.findall(r"--[a-z][\w.-]*[ =](?:true|false)\b", file.read_text())  # the command line has --flag and --no-flag


def test_commands_are_found_in_the_documents():
    assert len(_commands(ROOT / "README.md")) > 10
    shown = re.compile(r"^ *(?:\$ )?raydense [a-z](?!.*(?:\.\.\.|NEW_))", re.M)  # which leave nothing out
    for file in DOCUMENTS:
        text = file.read_text()
        fenced = re.findall(r"^ *```.*?^ *```", text, re.M | re.S)
        assert sum(len(shown.findall(block)) for block in fenced) == sum(len(shown.findall(block)) for block in SHELL.findall(text)), file
    assert all(_commands(file) for file in JOBS)


def _anchors(file: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", file.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_links_resolve(file):
    text = re.sub(r"^```.*?^```", "", file.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (file.parent / path).resolve() if path else file
        assert there.exists(), target
        if anchor:
            assert anchor in _anchors(there), target


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_files_that_are_named_exist(file):
    for path in set(re.findall(r"`((?:tests|raydense|benchmarks|jobs|cluster|docs)/[\w/.-]+\.\w+)", file.read_text())):
        if "NAME" not in path and path not in THE_READERS and file.name != "CHANGELOG.md":
            assert (ROOT / path).exists(), path


def test_the_recipe_for_own_data_can_be_planned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    block = re.search(r"^```yaml\n(.*?)^```", (ROOT / "docs" / "guides" / "own-data.md").read_text(), re.M | re.S)[1]
    (tmp_path / "own.yaml").write_text(block)
    make_set(tmp_path / "scifact", splits=("train", "test"))
    rows = plan(Recipe.read("own.yaml", "out-own"))
    assert [row["state"] for row in rows] == ["ready", *["waits"] * 8]
    assert Recipe.read("own.yaml", "out-own", ("source=data/mine/",)).stages[0].settings.input == "data/mine/"


def test_readme_stays_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def _python_of_own_data(words: str) -> str:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "guides" / "own-data.md").read_text(), re.M | re.S)
    (shown,) = [block for block in blocks if words in block]
    return shown


def _run_of(folder: Path, passage_ids: list[str]) -> None:
    draft = Draft.open(folder, "run", {})
    hits = {"query_id": ["q1"] * len(passage_ids), "passage_id": passage_ids}
    ranks = range(1, len(passage_ids) + 1)
    scores = [3.5 - rank for rank in ranks]
    commit_table(draft, "run-00000.parquet", pa.table({**hits, "rank": list(ranks), "score": scores}))
    draft.finish(len(passage_ids), k=100)


def test_the_python_that_reads_artifacts_runs_as_it_is_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rd.sample(rd.SampleSettings(passages=200, train_queries=40, dev_queries=8, test_queries=8, output="data/scifact"))
    corpus = rd.PassageStore("data/scifact/corpus")
    _run_of(tmp_path / "runs" / "bm25", corpus.ids([7, 3]))
    exec(compile(_python_of_own_data("of_query"), "own-data.md", "exec"), {})
    printed = capsys.readouterr().out
    assert printed.startswith("2 100\n")
    assert all(f"q1 {rank} {3.5 - rank} {text}" in printed for rank, text in enumerate(corpus.passages([7, 3]), 1))


def test_the_python_that_ranks_documents_by_their_best_passages_runs_as_it_is_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _run_of(tmp_path / "runs" / "passages", ["fox-12", "red-fox-0", "fox-3"])
    exec(compile(_python_of_own_data("documents.run"), "own-data.md", "exec"), {})
    rd.import_dataset(rd.ImportSettings(format="trec", input="documents.run", output="runs/documents"))
    assert rd.Artifact.open("runs/documents/run", "run").head()["passage_id"].tolist() == ["fox", "red-fox"]


def test_the_answer_shown_for_http_is_right(tmp_path):
    """The question is one of the demo's, the passage that is shown first answers it, and both have the titles and texts that are shown."""
    text = (ROOT / "docs" / "guides" / "http.md").read_text()
    question = re.search(r'"queries": \["([^"]+)"\]', text)[1]
    shown = re.findall(r'\{"id":"([^"]+)","score":[\d.]+,"title":"([^"]+)","text":"([^"]+)"', text)
    assert len(shown) == 2
    rd.sample(rd.SampleSettings(passages=5000, seed=1, output=str(tmp_path / "data")))
    queries = {row["text"]: row["query_id"] for row in read_table(tmp_path / "data" / "queries", "queries").to_pylist()}
    judged = read_table(tmp_path / "data" / "qrels" / "test", "qrels").to_pylist()
    assert shown[0][0] in [row["passage_id"] for row in judged if row["query_id"] == queries[question]]
    corpus = rd.PassageStore(tmp_path / "data" / "corpus")
    for passage_id, title, begins in shown:
        (row,) = corpus.take(corpus.rows_of(pa.array([passage_id])), ["title", "text"]).to_pylist()
        assert row["title"] == title
        assert row["text"].startswith(begins.removesuffix(" ..."))
