"""Groups of settings: nested in files, dotted in flags, messages and fingerprints; and a key that chooses the class of the others."""

from __future__ import annotations

from typing import ClassVar, Literal

import click
import pytest
from click.testing import CliRunner
from pydantic import model_validator

from raydense.cli.flags import Command, read
from raydense.cli.work import verb_work
from raydense.errors import InputError
from raydense.recipes.recipe import Recipe
from raydense.recipes.stage import VERBS, Verb
from raydense.recipes.sweep import Sweep
from raydense.serving.settings import ServeSettings
from raydense.settings import BaseSettings, Settings, artifact, group, resource, setting
from raydense.storage import Draft, provenance


class Dev(BaseSettings):
    qrels: str = artifact("qrels", "the judgements")
    every: int = setting(0, "steps between measurements", ge=0)
    passages: int = setting(100, "passages to search in", ge=10)
    threads: int = resource(1, "threads")

    @model_validator(mode="after")
    def _fits(self) -> Dev:
        if self.every > self.passages:
            raise ValueError("every is more than passages")
        return self


class Engine(BaseSettings):
    name: Literal["ddp", "deepspeed"] = setting("ddp", "what runs the step")
    sharded: bool = setting(False, "in pieces")


class Work(Settings):
    """A stage with groups."""

    renamed: ClassVar = {"dev_every": "dev.every"}
    chosen_by: ClassVar = "kind"
    newer: ClassVar = ("engine.sharded",)
    kind: Literal["plain", "steep"] = setting(..., "which")
    corpus: str = artifact("corpus", "the passages")
    lr: float = setting(1.0, "the rate")
    seed: int = setting(1, "the seed")
    dev: Dev | None = group("measure while it goes on")
    engine: Engine = group("what runs it", Engine)

    @classmethod
    def _named_by(cls, value, where):
        if value not in ("plain", "steep"):
            raise InputError(f"there is no {value!r}", where, "give plain or steep")
        return Steep if value == "steep" else Work


class Steep(Work):
    slope: float = setting(2.0, "how steep")


GIVEN = {"kind": "plain", "corpus": "c", "output": "o"}


def test_a_group_is_there_when_it_is_given():
    without, with_dev = Work.read(GIVEN), Work.read({**GIVEN, "dev": {"qrels": "q", "every": 5}, "engine": {"name": "deepspeed"}})
    assert (without.dev, without.engine.name) == (None, "ddp")
    assert (with_dev.dev.every, with_dev.dev.passages, with_dev.engine.name) == (5, 100, "deepspeed")
    assert without.given_keys() == {"kind", "corpus", "output"}
    assert with_dev.given_keys() == {"kind", "corpus", "output", "dev.qrels", "dev.every", "engine.name"}


def test_keys_of_a_group_are_dotted_where_they_shape_and_where_they_are_inputs():
    settings = Work.read({**GIVEN, "dev": {"qrels": "q"}})
    assert Work.read(GIVEN).shaping() == {"kind": "plain", "lr": 1.0, "seed": 1, "engine.name": "ddp"}
    assert settings.shaping() == {**Work.read(GIVEN).shaping(), "dev.every": 0, "dev.passages": 100}
    assert Work.read({**GIVEN, "engine": {"sharded": True}}).shaping()["engine.sharded"] is True
    assert Work.inputs() == {"corpus": "corpus", "dev.qrels": "qrels"}
    assert settings.located().dev.qrels.endswith("/q")
    assert Work.read(GIVEN).located().dev is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dev": {"qrels": "q", "evry": 5}}, "work.dev.evry: unknown key; did you mean 'dev.every'?"),
        ({"dev": {"every": 5}}, "work.dev.qrels: missing; give it: the judgements"),
        ({"dev": {"qrels": "q", "every": "often"}}, "work.dev.every: input should be a valid integer"),
        ({"dev": {"qrels": "q", "every": 200}}, "work.dev: every is more than passages"),
        ({"dev": 5}, "work.dev: is a group of keys (given: 5); give them below it, as dev.qrels"),
        ({"dev_every": 5}, "work.dev_every: was renamed; write dev.every"),
        (
            {"engine": {"name": "horse"}},
            "work.engine.name: input should be 'ddp' or 'deepspeed' (given: 'horse'); it is: what runs the step",
        ),
        ({"kind": "flat"}, "work.kind: there is no 'flat'; give plain or steep"),
        ({"slope": 3}, "work.slope: unknown key"),
        ({"kind": "steep", "slop": 3}, "work.slop: unknown key; did you mean 'slope'?"),
    ],
)
def test_a_fault_names_the_dotted_key(change, message):
    with pytest.raises(InputError) as caught:
        Work.read({**GIVEN, **change}, "work.")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_key_or_a_whole_group_that_means_nothing_is_refused():
    settings = Work.read({**GIVEN, "dev": {"qrels": "q", "every": 5}})
    with pytest.raises(ValueError, match=r"a dry run does not use dev, dev\.every: leave them out"):
        settings._refuse_given(["lr", "dev", "dev.every", "dev.passages", "engine"], "a dry run")


def call(*words: str, **given):
    """What the flags of a verb with these settings are read as."""
    found = []
    params = [click.Option(["--config"])]
    command = Command("work", Work, params=params, callback=lambda config, **flags: found.append(read(Work, config, flags)))
    result = CliRunner().invoke(command, list(words), **given)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return found[0] if found else result.output


FLAGS = ("--kind", "plain", "--corpus", "c", "--output", "o")


def test_flags_of_a_group():
    settings = call(*FLAGS, "--dev.qrels", "q", "--dev.every=5", "--engine.sharded")
    assert (settings.dev.qrels, settings.dev.every, settings.engine.sharded) == ("q", 5, True)
    assert call(*FLAGS).dev is None
    with pytest.raises(InputError, match=r"^--dev\.qrels: missing"):
        call(*FLAGS, "--dev.every", "5")
    with pytest.raises(InputError, match=r"^--dev-every: was renamed; write --dev\.every$"):
        call(*FLAGS, "--dev-every", "5")
    assert "No such option" in call(*FLAGS, "--slope", "3")
    assert call("--kind", "steep", *FLAGS[2:], "--slope", "3").slope == 3


def test_flags_take_the_place_of_a_files_keys_one_by_one(tmp_path):
    (tmp_path / "work.yaml").write_text("kind: steep\ncorpus: c\noutput: o\nslope: 4\ndev: {qrels: q, every: 5}\n")
    settings = call("--config", str(tmp_path / "work.yaml"), "--dev.every", "7")
    assert (settings.slope, settings.dev.qrels, settings.dev.every) == (4, "q", 7)


def test_help_lists_each_group_under_its_name():
    help = call("--help")
    assert "dev: measure while it goes on:" in help
    assert "engine: what runs it:" in help
    assert "--dev.every INT" in help
    assert "--dev.qrels FOLDER  the judgements  [required with dev]" in help  # the group may be left out
    assert "--corpus FOLDER  the passages  [required]" in help
    assert "--engine.sharded / --no-engine.sharded" in help
    assert "--slope" not in help
    assert "--slope" in call("--kind", "steep", "--help")


def test_the_flags_of_a_job_give_the_same():
    settings = Work.read({**GIVEN, "dev": {"qrels": "/q", "every": 5}, "engine": {"sharded": False}})
    work = verb_work("work", settings)
    assert call(*work.words[1:]).model_dump() == work.stages[0].settings.model_dump()


def test_an_input_of_a_group_is_part_of_the_fingerprint(tmp_path):
    corpus, qrels, other = (Draft.open(tmp_path / name, kind, {}) for name, kind in (("c", "corpus"), ("q", "qrels"), ("x", "corpus")))
    made = {draft.folder.name: draft.finish(0).fingerprint for draft in (corpus, qrels, other)}
    given = {**GIVEN, "corpus": str(tmp_path / "c"), "dev": {"qrels": str(tmp_path / "q")}}
    assert provenance("work", Work.read(given))["inputs"] == {"corpus": made["c"], "dev.qrels": made["q"]}
    with pytest.raises(InputError, match="holds corpus, not qrels"):
        provenance("work", Work.read({**given, "dev": {"qrels": str(tmp_path / "x")}}))


RECIPE = """
seed: 3
given: {judged: q}
stages:
  data: {do: sample, passages: 100}
  work:
    do: work
    kind: plain
    corpus: $data/corpus
    dev: {qrels: $judged, every: 5}
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.setitem(VERBS, "work", Verb(Work, "nowhere:work"))
    (tmp_path / "base.yaml").write_text(RECIPE)

    def read(text: str = "", *changes: str) -> Work:
        (tmp_path / "own.yaml").write_text(f"base: base.yaml\n{text}")
        return Recipe.read(tmp_path / "own.yaml", tmp_path / "out", changes).stages[-1].settings

    return read


def test_recipes_nest_groups_and_name_folders_in_them(recipe):
    settings = recipe()
    assert (settings.dev.qrels, settings.dev.every, settings.seed) == ("q", 5, 3)
    assert recipe("stages: {work: {dev: {qrels: $data/qrels/dev}}}").dev.qrels.endswith("/out/data/qrels/dev")


def test_a_recipe_with_a_base_and_set_change_one_key_of_a_group(recipe):
    assert recipe("stages: {work: {dev: {passages: 50}}}").dev == Dev(qrels="q", every=5, passages=50)
    assert recipe("stages: {work: {dev: null}}").dev is None
    assert recipe("", "work.dev.every=7", "work.engine.name=deepspeed").dev.every == 7
    assert recipe("", "work.dev=null").dev is None
    with pytest.raises(InputError, match=r"stages\.work\.dev\.evry: unknown key; did you mean 'dev\.every'"):
        recipe("", "work.dev.evry=7")


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ("work.dev.evry: [5]", r"sweep\.work\.dev\.evry: unknown key; did you mean 'dev\.every'"),
        ("variants: {one: {work.slope: 3}}", r"sweep\.variants\.one\.work\.slope: unknown key"),
        ("variants: {one: {work.slope: 3, work.kind: steep, work.dev.every: 7}}", "has no evaluate stage"),
    ],
)
def test_a_sweep_takes_the_keys_of_groups_and_of_what_its_variant_chooses(recipe, tmp_path, grid, message):
    recipe(f"sweep: {{{grid}}}")
    with pytest.raises(InputError, match=message):
        Sweep.read(tmp_path / "own.yaml", tmp_path / "out")


def test_paths_in_a_list_are_made_absolute_and_keep_their_names(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    located = ServeSettings(index=["ix/words", "dense=ix/dense"], fuse="runs/lr=1").located()
    assert (located.index, located.fuse) == ([f"{tmp_path}/ix/words", f"dense={tmp_path}/ix/dense"], f"{tmp_path}/runs/lr=1")
