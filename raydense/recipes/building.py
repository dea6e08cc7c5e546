"""Builds the stages of a recipe from its content: names become folders, defaults and the seed are filled in, settings are checked."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection
from typing import Any

from raydense.errors import Faults, InputError, did_you_mean, faults_of
from raydense.recipes.content import REFERENCE, named_in, without_nulls
from raydense.recipes.inputs import absolute_inputs, below
from raydense.recipes.stage import VERBS, Stage
from raydense.retrieval.settings import SearchSettings
from raydense.settings import Settings, flat, put
from raydense.storage import Place, digest_of


class Builder:
    """The stages of one recipe, built in order; every fault is added to `faults`.

    Each stage has a folder of its name in `output`, or, where `shared` is given, one that is named by all that shapes the stage.
    """

    def __init__(self, content: dict[str, Any], output: Place, file: str, shared: Place | None, faults: Faults) -> None:
        self._content, self._output, self._file, self._shared, self._faults = content, output, file, shared, faults
        self._given, self._defaults = content["given"], content.get("defaults") or {}
        self._folders: dict[str, str] = {}  # of the stages so far
        self._paths: dict[str, str] = {}  # of the same stages, as `_check_apart` compares them
        self._classes: list[tuple[type[Settings], set[str]]] = []  # of each stage, with the names that it may refer to
        self._unknown: set[str] = set()  # names in the defaults that are of nothing: reported there, and not again by each stage

    def stages(self) -> tuple[Stage, ...]:
        """The stages that have no fault."""
        self._check_names_of_defaults()
        built = []
        for name, values in self._content["stages"].items():
            with self._faults.collected():
                built.append(stage := self._stage(str(name), values))
                self._folders[stage.name] = stage.settings.output
            # one with a fault has a folder too, so that stages which name it are checked
            folder = self._folders.setdefault(str(name), os.path.join(str(self._output), str(name)))
            with self._faults.collected():
                self._paths[str(name)] = _path(folder)
        if len(self._classes) == len(self._content["stages"]):
            self._check_keys_of_defaults()
        return tuple(built)

    def _check_names_of_defaults(self) -> None:
        names = {*self._given, *map(str, self._content["stages"])}
        for key, value in flat(self._defaults).items():
            for name in named_in(value):
                if name not in names:
                    self._unknown.add(name)
                    self._faults.add(f"${name} is no stage and not given", f"{self._file}: defaults.{key}", did_you_mean(name, names))

    def _check_keys_of_defaults(self) -> None:
        known = {key for each, _ in self._classes for key in each.all_fields()}
        for key, value in self._defaults_by_key(known).items():
            where, named = f"{self._file}: defaults.{key}", named_in(value)
            if key not in known:
                self._faults.add("no stage has this setting", where, did_you_mean(key, known))
            elif not any(names.issuperset(named) for each, names in self._classes if key in each.all_fields()):
                what = f"names {', '.join(f'${name}' for name in named)}, which stands behind every stage that has this setting"
                self._faults.add(what, where, "name it in one of them, or put it before them")

    def _stage(self, name: str, values: Any) -> Stage:
        where = f"{self._file}: stages.{name}"
        verb = self._verb(name, values, where)
        needs: list[str] = []
        written = {key: value for key, value in values.items() if key != "do"}
        chosen, values, given = self._values(VERBS[verb].settings, written, needs, where)
        self._check_output(values, f"{where}.output")
        values.setdefault("output", str(self._output / name))
        if not self._shared:
            self._check_apart(str(values["output"]), f"{where}.output")
        settings = self._read(chosen, values, given, where)
        if isinstance(settings, SearchSettings) and not settings.index:
            fix = "give it together with pool, which must answer from it"
            raise InputError("a recipe says which index its runs come from", f"{where}.index", fix)
        if self._shared:
            folder = self._shared / _identity(verb, settings, self._shared) / name
            settings = settings.model_copy(update={"output": str(folder)})
        needed = tuple(dict.fromkeys(needs))
        return Stage(name, verb, settings, needed, tuple(self._folders[need] for need in needed), given, where)

    def _values(
        self, settings: type[Settings], written: dict[str, Any], needs: list[str], where: str
    ) -> tuple[type[Settings], dict[str, Any], dict[str, str]]:
        """The class that reads a stage's settings, its values with the defaults and the seed, and the given name behind each key."""
        values = {key: self._resolved(value, needs, f"{where}.{key}") for key, value in written.items()}
        chosen = settings.chosen(without_nulls(values), f"{where}.")
        whole = chosen.all_fields()
        own, values, written = flat(values, whole), without_nulls(values, whole), flat(written, whole)
        self._classes.append((chosen, self._names()))
        if not chosen.chosen_by:  # else it may leave out a key of the method that the base has
            for key in (key for key, value in own.items() if value is None):
                chosen.refuse_unknown(key, f"{where}.")
        for key, value in self._defaults_for(chosen, values, own).items():
            if (found := self._resolved(value, needs, f"{where}.{key}")) is not None:
                put(values, key, found)
            written[key] = value
        if self._content.get("seed") is not None and "seed" in chosen.model_fields:
            values.setdefault("seed", self._content["seed"])
        given = {key: names[0] for key, value in written.items() if (names := [name for name in named_in(value) if name in self._given])}
        return chosen, values, given

    def _read(self, chosen: type[Settings], values: dict[str, Any], given: dict[str, str], where: str) -> Settings:
        """The settings of a stage; of a key that is missing since the recipe is given no value, the error says how to give it."""
        try:
            return chosen.read(values, f"{where}.")
        except InputError as error:
            for fault in faults_of(error):
                name = given.get(fault.args[1].removeprefix(f"{where}."), "")
                if name and self._given[name] is None:
                    fault.args = (*fault.args[:2], f"give it by --set {name}=VALUE, or in given")
            raise

    def _verb(self, name: str, values: Any, where: str) -> str:
        """The verb of a stage, whose name can be referred to."""
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or name in ("defaults", *self._given):
            what = "a stage's name has only letters, digits, - and _, and is neither a given name nor defaults"
            raise InputError(what, where, "rename it")
        if not isinstance(values, dict) or not isinstance(values.get("do"), str):
            raise InputError("has no `do:`", where, f"give its verb: {', '.join(VERBS)}")
        verb: str = values["do"]
        if verb == "export":
            raise InputError("its output is a plain file, not a stage's", f"{where}.do", "run `raydense export` after the recipe")
        if verb not in VERBS:
            raise InputError(f"unknown verb {verb!r}", f"{where}.do", did_you_mean(verb, VERBS))
        return verb

    def _check_output(self, values: dict[str, Any], where: str) -> None:
        if self._shared and "output" in values:
            self._faults.add("stages of a sweep are given their folders", where, "leave it out")
        elif "output" in values and not below(str(values["output"]), str(self._output)):
            self._faults.add("lies outside of the recipe's folder", where, "leave it out, or give a folder in it")

    def _check_apart(self, output: str, where: str) -> None:
        """A fault where an earlier stage's folder is this one, in it or around it."""
        here = _path(output)
        for name, there in self._paths.items():
            if here.startswith(there) or there.startswith(here):
                self._faults.add(f"lies in the folder of ${name}, or around it", where, "leave it out, or give another folder")

    def _defaults_for(self, chosen: type[Settings], values: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
        """The defaults that a stage has and does not set itself in `own`, to null neither, without those that name a later stage.

        One may decide which others have an effect: these are asked for together with it.
        """
        known = self._names()
        left = self._defaults_by_key(chosen.all_fields())
        left = {key: value for key, value in left.items() if key not in own and key.partition(".")[0] not in own}
        left = {key: value for key, value in left.items() if known.issuperset(named_in(value))}
        together = dict(values)
        for key in left.keys() & chosen.takes(values):
            if self._names_value(left[key]):
                put(together, key, left[key])
        has = chosen.takes(together)
        return {key: value for key, value in left.items() if key in has}

    def _defaults_by_key(self, keys: Collection[str]) -> dict[str, Any]:
        """The defaults that are not null, by their dotted `keys`."""
        return flat(without_nulls(self._defaults, keys), keys)

    def _names_value(self, value: Any) -> bool:
        """Whether `value` is not a given name of null."""
        return not (isinstance(value, str) and value.startswith("$") and self._given.get(value[1:], value) is None)

    def _names(self) -> set[str]:
        """What a stage may refer to that comes next; those that are of nothing are reported elsewhere."""
        return {*self._given, *self._folders, *self._unknown}

    def _resolved(self, value: Any, needs: list[str], where: str) -> Any:
        """`value` with $names replaced: by what the recipe is given, or by the folder of an earlier stage (noted in `needs`)."""
        if isinstance(value, list):
            return [self._resolved(item, needs, where) for item in value]
        if isinstance(value, dict):
            return {key: self._resolved(inner, needs, f"{where}.{key}") for key, inner in value.items()}
        if not isinstance(value, str):
            return value
        if value.startswith("$") and value[1:] in self._given:
            return self._given[value[1:]]

        def replace(match: re.Match[str]) -> str:
            name = match[1]
            if name in self._given:
                if self._given[name] is None:
                    self._faults.add(f"${name} is given no value", where, f"give it by --set {name}=VALUE, or in given")
                return str(self._given[name])
            if name in self._folders:
                needs.append(name)
                return self._folders[name]
            if name not in self._unknown:
                later = name in self._content["stages"]
                what = "stands behind this stage" if later else "is no earlier stage and not given"
                fix = "put it before" if later else did_you_mean(name, [*self._folders, *self._given])
                self._faults.add(f"${name} {what}", where, fix)
            return match[0]

        return REFERENCE.sub(replace, value)


def _path(folder: str) -> str:
    """A folder as what every path in it begins with."""
    return f"{os.path.normpath(Place.of(folder).located)}{os.sep}"


def _identity(verb: str, settings: Settings, shared: Place) -> str:
    """A digest of what shapes a stage: its verb, its settings, and its inputs, of which the folders of stages are named so themselves.

    Other paths count by what they name; as earlier versions took them as they were spelled, a folder of that name is the stage's.
    """
    spelled = _digest(verb, settings, str(shared))
    named = _digest(verb, absolute_inputs(settings), shared.located)
    return spelled if spelled == named or (shared / spelled).exists() else named


def _digest(verb: str, settings: Settings, shared: str) -> str:
    inputs = {key: settings.value_of(key) for key in settings.inputs()}
    given = {settings.recorded.get(key, key): value for key, value in inputs.items() if key not in settings.newer or value is not None}
    return digest_of([verb, settings.shaping(), json.dumps(given, ensure_ascii=False).replace(f"{shared}{os.sep}", "")])[:12]
