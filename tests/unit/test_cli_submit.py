"""Submitting: names, command lines, what travels, and what is refused before anything is sent. The rest is in tests/integration."""

import asyncio
import shlex
import shutil
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import ray
import yaml
from ray.dashboard.modules.job.pydantic_models import JobDetails, JobType
from ray.job_submission import JobStatus

import raydense
from raydense.cli import jobs, main
from raydense.cli.submit import _follow
from raydense.cli.visibility import check_submission, refuse_local
from raydense.cli.work import code_digest, entrypoint, needed, packed, recipe_work, submission_name, verb_work, words_of
from raydense.construction.settings import AnnotateSettings
from raydense.data.settings import ImportSettings
from raydense.errors import InputError
from raydense.evaluation.settings import EvaluateSettings
from raydense.recipes.recipe import Recipe
from raydense.recipes.stage import Stage
from raydense.recipes.sweep import Sweep
from raydense.retrieval.settings import IndexSettings, SearchSettings
from raydense.training.settings import TrainSettings

PACKAGE = Path(raydense.__file__).parent
RECIPES = PACKAGE.parent / "jobs" / "recipes"


def index(**values):
    return verb_work("index", IndexSettings.read({"kind": "bm25", "corpus": "c", "output": "o", **values}))


def test_the_name_is_that_of_what_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = submission_name(index())
    assert name == submission_name(index(corpus=str(tmp_path / "c"), output="./o"))
    assert name.startswith("raydense-index-")
    assert len(name) == len("raydense-index-") + 12
    others = [index(shards=2), index(corpus="d"), index(output="p")]
    assert len({name, *(submission_name(work) for work in others)}) == 4
    train = {"objective": "retriever", "model": "tiny", "corpus": "c", "queries": "q", "examples": "x", "output": "o"}
    alone, spread = (verb_work("train", TrainSettings.read({**train, "workers": workers})) for workers in (1, 8))
    assert submission_name(alone) == submission_name(spread)
    assert alone.words != spread.words


def test_other_code_has_another_digest(tmp_path):
    copy = tmp_path / "raydense"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__" / "cli.pyc").write_bytes(b"kept by Python")
    assert code_digest(copy) == code_digest()
    (copy / "settings.py").write_text((copy / "settings.py").read_text() + "\n")
    assert code_digest(copy) != code_digest()


def test_the_command_line_is_whole_and_quoted(tmp_path, monkeypatch):
    folder = tmp_path / "it's mine; $HOME"
    folder.mkdir()
    monkeypatch.chdir(folder)
    settings = EvaluateSettings.read(
        {"run": ["one=runs/a", "runs/b"], "queries": "q", "corpus": "c", "answers": {"k": [1, 5]}, "title": "a b", "output": "o"}
    )
    work = verb_work("evaluate", settings)
    assert shlex.split(entrypoint(work, "python")) == [
        *("python", "-m", "raydense", "evaluate", "--output", f"{folder}/o", "--run", f"one={folder}/runs/a", "--run", f"{folder}/runs/b"),
        *("--queries", f"{folder}/q", "--corpus", f"{folder}/c", "--answers.k", "1", "--answers.k", "5", "--title", "a b"),
    ]
    dataset = verb_work("import", ImportSettings.read({"format": "ir_datasets", "input": "beir/scifact", "output": "o"}))
    assert "beir/scifact" in dataset.words
    assert needed(dataset.stages) == []


def test_models_of_the_hub_in_a_list_are_no_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    models = ["owner/one", "other=owner/two", "m=./own"]
    settings = AnnotateSettings(run=["run"], model=models, corpus="corpus", queries="queries", qrels="qrels", output="o")
    paths = needed(verb_work("annotate", settings).stages)
    assert sorted(Path(path).relative_to(tmp_path).name for path in paths) == ["corpus", "own", "qrels", "queries", "run"]


def test_a_recipe_travels_with_its_base(tmp_path):
    sweep = Sweep.read(RECIPES / "quickstart-sweep.yaml", tmp_path / "out")
    stages = [stage for trial in sweep.trials for stage in trial.recipe.stages]
    work = recipe_work(str(RECIPES / "quickstart-sweep.yaml"), str(tmp_path / "out"), stages, ["--set", "data.passages=700"])
    assert len(work.stages) < len(stages)
    assert needed(work.stages) == []
    with packed(work) as folder:
        there = sorted(path.name for path in folder.iterdir())
        assert there == ["quickstart-sweep.yaml", "raydense"]
        assert "base" not in yaml.safe_load((folder / "quickstart-sweep.yaml").read_text())
        again = Sweep.read(folder / "quickstart-sweep.yaml", tmp_path / "out")
        assert [trial.recipe.stages for trial in again.trials] == [trial.recipe.stages for trial in sweep.trials]
        assert code_digest(folder / "raydense") == code_digest()
        assert sum(path.stat().st_size for path in folder.rglob("*")) < 4 * 2**20


def test_a_relative_input_of_a_recipe_is_refused(tmp_path):
    file = RECIPES / "scifact-tiny.yaml"
    recipe = Recipe.read(file, tmp_path, ("encoder=/shared/e",))
    with pytest.raises(InputError, match=r"scifact-tiny.yaml: stages.data.input: '../shared/data/scifact' is a relative path"):
        recipe_work(str(file), str(tmp_path), recipe.stages, [])
    recipe = Recipe.read(file, tmp_path, ("encoder=/shared/e", "source=/shared/s"))
    assert sorted(needed(recipe.stages)) == ["/shared/e", "/shared/s"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "Did you mean one of: 'pretrain', 'train'?"),
        (["train", "--lrr", "1"], "Did you mean '--lr'?"),
        (["index", "--kind", "fais", "--output", "o"], "--kind: input should be 'faiss' or 'bm25' (given: 'fais')"),
        (["run", "nowhere.yaml", "--output", "o"], "nowhere.yaml: no such file"),
        (["sample", "--output", "/shared/o"], "--address: missing; give that of the cluster's dashboard"),
        (["sample", "--output", "/shared/o", "--address", "head:8265"], "--address head:8265: is no http address"),
        (["sample", "--output", "o", "--address", "http://192.0.2.1:8265"], "o: lies on a disk of this machine"),
        (["status", "x", "--address", "http://127.0.0.1:1"], "http://127.0.0.1:1: no dashboard of Ray answers"),
    ],
)
def test_bad_input_is_refused_before_anything_is_sent(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "")  # `connect` sets it: so it is put back
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit) as stopped:
        main(["submit", *words])
    out, err = capsys.readouterr()
    assert (stopped.value.code, out) == (2, "")
    assert message in err.splitlines()[-1]


def test_ray_address_is_the_default_where_it_is_a_dashboard(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265/")
    assert jobs.dashboard(None) == "http://head:8265"
    assert jobs.dashboard("https://other:443") == "https://other:443"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(InputError, match=r"RAY_ADDRESS 10.0.0.1:6379: is no http address"):
        jobs.dashboard(None)


def test_a_proxy_gets_the_headers_of_the_environment(monkeypatch):
    asked = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.headers["Authorization"])
            self.send_response(403)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("RAY_JOB_HEADERS", '{"Authorization": "Basic abc"}')
    with pytest.raises(InputError, match=address):
        jobs.connect(address)
    server.shutdown()
    assert set(asked) == {"Basic abc"}
    monkeypatch.setenv("RAY_JOB_HEADERS", "Basic abc")
    with pytest.raises(InputError, match="RAY_JOB_HEADERS: is no JSON object") as refused:
        jobs.connect(address)
    assert "abc" not in str(refused.value)


def test_paths_are_checked_only_in_a_submission(monkeypatch):
    monkeypatch.delenv("RAYDENSE_SUBMISSION", raising=False)
    check_submission([Stage("index", "index", IndexSettings.read({"kind": "bm25", "corpus": "/nowhere", "output": "o"}), ())])


def test_a_log_that_is_read_again_is_printed_once():
    unread = jobs.Unread()
    printed = []
    for pieces in (["one\ntw"], ["one\n", "two\n", "three\n"], [], ["one\ntwo\nthree\n", "four\n"]):
        unread.again()
        printed += [unread.of(piece) for piece in pieces]
    assert "".join(printed) == "one\ntwo\nthree\nfour\n"


class Cluster:
    """Keeps what is submitted; `earlier` are the jobs that it had before."""

    def __init__(self, *earlier):
        self.jobs, self.submitted, self.reserved = list(earlier), [], {}

    def list_jobs(self):
        return self.jobs

    def submit_job(self, **given):
        sent = sorted(path.name for path in Path(given["runtime_env"]["working_dir"]).iterdir())
        self.submitted.append((given["entrypoint"], given["submission_id"], given["runtime_env"]["env_vars"], sent))
        self.reserved = {key: value for key, value in given.items() if key.startswith("entrypoint_")}


@pytest.mark.parametrize(
    ("flags", "python", "verbosity"),
    [
        ([], "python", {}),
        (["--quiet"], "python", {"RAYDENSE_VERBOSITY": "quiet"}),
        (["--verbose", "--python", "/opt/a b/python"], "'/opt/a b/python'", {"RAYDENSE_VERBOSITY": "verbose"}),
    ],
)
def test_a_job_has_the_python_the_verbosity_and_the_code(flags, python, verbosity, monkeypatch, capsys):
    monkeypatch.setenv("RAYDENSE_VERBOSITY", "")  # a flag sets it: so it is put back
    monkeypatch.delenv("RAYDENSE_VERBOSITY")
    cluster = Cluster()
    monkeypatch.setattr(jobs, "connect", lambda address: cluster)
    with pytest.raises(SystemExit) as stopped:
        main(["submit", "sample", "--output", "s3://b/o", "--address", "http://head.example:8265", "--no-wait", *flags])
    name = capsys.readouterr().out.strip()
    assert stopped.value.code == 0
    environment = {"RAYDENSE_SUBMISSION": name, **verbosity}
    assert cluster.submitted == [(f"{python} -m raydense sample --output s3://b/o", name, environment, ["raydense"])]


def test_a_job_has_the_network_of_the_command(monkeypatch):
    """Nodes were started without it."""
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ens5")
    cluster = Cluster()
    jobs.start(cluster, index())
    assert cluster.submitted[0][2]["NCCL_SOCKET_IFNAME"] == "ens5"


SAMPLE = ["submit", "sample", "--output", "s3://b/o", "--address", "http://head.example:8265", "--no-wait"]


def test_a_job_gets_the_variables_and_the_place_that_were_asked_for(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker:5000")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    cluster = Cluster()
    monkeypatch.setattr(jobs, "connect", lambda address: cluster)
    words = ["--env", "MLFLOW_TRACKING_URI", "--env", "TOKENIZERS_PARALLELISM=a=b", "--env", "NCCL_DEBUG=INFO"]
    words += ["--entrypoint-num-cpus", "2", "--entrypoint-memory", "1000", "--entrypoint-resources", '{"big": 1}']
    with pytest.raises(SystemExit, match="0"):
        main([*SAMPLE, *words])
    (_, name, environment, _) = cluster.submitted[0]
    asked = {"MLFLOW_TRACKING_URI": "http://tracker:5000", "TOKENIZERS_PARALLELISM": "a=b", "NCCL_DEBUG": "INFO"}
    assert asked | {"RAYDENSE_SUBMISSION": name} == {key: environment[key] for key in [*asked, "RAYDENSE_SUBMISSION"]}
    assert cluster.reserved == {"entrypoint_num_cpus": 2, "entrypoint_memory": 1000, "entrypoint_resources": {"big": 1}}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--env", "HF_TOKEN"],
            "--env HF_TOKEN: Ray's dashboard shows the variables of a job, so keys and passwords are not sent; set it in",
        ),
        (["--env", "AWS_ACCESS_KEY_ID=hidden"], "--env AWS_ACCESS_KEY_ID: Ray's dashboard shows"),
        (["--env", "pgpassword=hidden"], "--env pgpassword: Ray's dashboard shows"),
        (["--env", "MLFLOW_TRACKING_URI=https://me:hidden@host"], "--env MLFLOW_TRACKING_URI: contains credentials"),
        (["--env", "NOT_SET_HERE"], "--env NOT_SET_HERE: is not set here; set it, or give --env NOT_SET_HERE=VALUE"),
        (["--env", "A-B=1"], "--env A-B: is no name of a variable"),
        (["--entrypoint-resources", "big"], "--entrypoint-resources big: is no JSON object of amounts"),
        (["--entrypoint-resources", '{"big": "1"}'], "is no JSON object of amounts"),
        (["--entrypoint-memory", "2.5"], "'--entrypoint-memory': '2.5' is not a valid integer"),
    ],
)
def test_variables_and_resources_of_a_job_are_checked_before_anything_is_sent(words, message, monkeypatch, capsys):
    monkeypatch.setattr(jobs, "connect", None)
    with pytest.raises(SystemExit, match="2"):
        main([*SAMPLE, *words])
    error = capsys.readouterr().err.splitlines()[-1]
    assert message in error
    assert "hidden" not in error


def test_what_mlflow_would_write_into_the_folder_of_a_job_is_refused(monkeypatch):
    monkeypatch.setenv("RAYDENSE_SUBMISSION", "raydense-train-1")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folders = {key: f"s3://b/{key}" for key in ("model", "corpus", "queries", "examples", "output")}
    stage = Stage("train", "train", TrainSettings(objective="retriever", track="mlflow", **folders), ())
    with pytest.raises(InputError, match=r"^track: MLFLOW_TRACKING_URI is not set in the job, .*--env MLFLOW_TRACKING_URI"):
        check_submission([stage])
    joined = []
    monkeypatch.setattr("raydense.cli.visibility._refuse_unseen", joined.extend)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker:5000")
    check_submission([stage])
    assert joined == [stage]


def test_a_node_that_does_not_answer_is_named(monkeypatch):
    """As one with a mount that hangs, where the task that looks never ends."""

    class Task:
        def options(self, **_):
            return self

        def remote(self, *_):
            return "answer"

    def get(answer, timeout=None):
        assert timeout is not None, "without one the job waits for ever"
        raise ray.exceptions.GetTimeoutError

    monkeypatch.setenv("RAYDENSE_SUBMISSION", "raydense-index-1")
    monkeypatch.setattr("raydense.cli.visibility.ensure_ray", lambda: None)
    monkeypatch.setattr(ray, "nodes", lambda: [{"NodeID": "0" * 56, "NodeManagerHostname": "node-7", "Alive": True}])
    monkeypatch.setattr(ray, "remote", lambda **_: lambda function: Task())
    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(InputError, match=r"^the cluster's node node-7 did not say within 120 s whether it sees the paths; .*mount"):
        check_submission(index(corpus="/shared/c", output="/shared/o").stages)


def test_no_node_is_asked_where_all_paths_are_in_buckets(monkeypatch):
    """One that is busy with another job may take longer than the check waits."""
    monkeypatch.setenv("RAYDENSE_SUBMISSION", "raydense-index-1")
    monkeypatch.setattr("raydense.cli.visibility.ensure_ray", lambda: None)
    monkeypatch.setattr(ray, "nodes", lambda: [{"NodeID": number * 56, "NodeManagerHostname": "node", "Alive": True} for number in "01"])
    monkeypatch.setattr(ray, "remote", lambda **_: lambda function: pytest.fail("a node was asked"))
    check_submission(index(corpus="s3://b/c", output="s3://b/o").stages)


def test_a_job_that_has_ended_is_submitted_under_the_next_name():
    work = index()
    name = submission_name(work)
    ended = JobDetails(type=JobType.SUBMISSION, submission_id=name, entrypoint="x", status=JobStatus.STOPPED)
    cluster = Cluster(ended)
    assert jobs.start(cluster, work) == (f"{name}-2", f"submitted again: {name} stopped")
    assert cluster.submitted[0][1] == f"{name}-2"
    cluster.jobs.append(ended.model_copy(update={"submission_id": f"{name}-2", "status": JobStatus.RUNNING}))
    assert jobs.start(cluster, work) == (f"{name}-2", "runs already")
    assert len(cluster.submitted) == 1


def test_a_cluster_that_is_lost_is_one_line(monkeypatch, capsys):
    import requests

    class Lost(Cluster):
        def get_job_info(self, name):
            raise requests.ConnectionError("Connection refused")

        list_jobs = get_job_logs = lambda self, *_: self.get_job_info("")

    monkeypatch.setattr(jobs, "connect", lambda address: Lost())
    for words in (["status", "x"], ["stop", "x"], ["logs", "x"], ["list"]):
        with pytest.raises(SystemExit) as ended:
            main(["submit", *words, "--address", "http://127.0.0.1:9"])
        assert ended.value.code == 1
        assert capsys.readouterr().err == "raydense: the cluster does not answer (Connection refused)\n"


def test_the_questions_of_search_are_no_jobs(capsys):
    with pytest.raises(SystemExit):
        main(["submit", "search", "--help"])
    assert "--rerank" not in capsys.readouterr().out


def test_a_connection_that_is_lost_in_silence_is_made_again(monkeypatch):
    """As by a firewall: Ray's client waits for ever on it. The job has ended meanwhile."""

    class Silent(Cluster):
        looks = 0

        async def tail_job_logs(self, name):
            self.looks += 1
            yield "first\n"
            if self.looks == 1:
                await asyncio.Event().wait()
            yield "second\n"

        def get_job_info(self, name):
            return self.jobs[0].model_copy(update={"status": JobStatus.SUCCEEDED if self.looks > 1 else JobStatus.RUNNING})

    monkeypatch.setattr(jobs, "_SILENT_S", 0.05)
    monkeypatch.setattr(jobs, "_AGAIN_S", 0.0)
    job = JobDetails(type=JobType.SUBMISSION, submission_id="raydense-index-1", entrypoint="x", status=JobStatus.RUNNING)
    printed = []
    assert jobs.Follower(Silent(job), "raydense-index-1", printed.append).follow().status == JobStatus.SUCCEEDED
    assert "".join(printed) == "first\nsecond\n"


def test_a_job_that_never_ran_is_an_error_also_when_quiet(monkeypatch, capsys):
    monkeypatch.setenv("RAYDENSE_VERBOSITY", "quiet")
    name, message = "raydense-index-1", "no runtime environment"
    job = JobDetails(type=JobType.SUBMISSION, submission_id=name, entrypoint="x", status=JobStatus.FAILED, message=message)
    monkeypatch.setattr(jobs.Follower, "follow", lambda follower: job)
    with pytest.raises(SystemExit) as ended:
        _follow(None, "raydense-index-1", "http://127.0.0.1:9", False, sys.stderr)
    assert ended.value.code == 1
    assert capsys.readouterr().err == "raydense-index-1: failed: no runtime environment\n"


def test_what_flags_cannot_express_is_refused(tmp_path, capsys):
    (tmp_path / "e.yaml").write_text("suite: /shared/sets\nmodel: /shared/m\nsets: [my set]\n")
    with pytest.raises(SystemExit) as stopped:
        main(["submit", "evaluate", "--config", str(tmp_path / "e.yaml"), "--output", "/shared/o"])
    assert stopped.value.code == 2
    assert "evaluate: contains a value that flags cannot express" in capsys.readouterr().err


def test_flags_express_a_path_with_a_blank(tmp_path, capsys, monkeypatch):
    """So that the address alone is missing."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "e.yaml").write_text("run: [/shared/my run]\nqrels: /shared/q\n")
    with pytest.raises(SystemExit, match="2"):
        main(["submit", "evaluate", "--config", str(tmp_path / "e.yaml"), "--output", "/shared/o"])
    assert "--address: missing" in capsys.readouterr().err


def test_a_text_given_once_is_a_list_also_in_a_job(capsys, monkeypatch):
    """So that the address alone is missing."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    given = ["--suite", "/shared/sets", "--model", "/shared/m", "--prefixes", "nq=a question, of two words: "]
    with pytest.raises(SystemExit, match="2"):
        main(["submit", "evaluate", *given, "--output", "/shared/o"])
    assert "--address: missing" in capsys.readouterr().err


def test_what_lies_in_a_bucket_is_seen_by_every_node():
    settings = SearchSettings(index="s3://b/ix", queries="gs://b/q", output="s3://b/run")
    work = verb_work("search", settings)
    assert work.words == ("search", *words_of(settings))
    assert {"s3://b/ix", "gs://b/q", "s3://b/run"} <= set(work.words)
    assert needed(work.stages) == []
    refuse_local(work, "http://head.example:8265")
