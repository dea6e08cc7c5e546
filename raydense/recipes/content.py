"""The content of a recipe's file: read, put on top of its base, and changed by `--set`; its stages are checked elsewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, ClassVar

import yaml

from raydense.errors import Faults, InputError, did_you_mean
from raydense.settings import put

REFERENCE = re.compile(r"(?:^|(?<==))\$([A-Za-z0-9_-]+)")
_UNREADABLE = (yaml.YAMLError, ValueError, KeyError, AttributeError)  # what YAML's own reading of dates, numbers and tags raises, too
_EMPTY = ("", "~", "null", "Null", "NULL", "''", '""')
_KEYS = {"seed", "description", "given", "defaults", "stages", "sweep"}


def recipe_file(name: str) -> Path:
    """A recipe that comes with raydense, by its name: next to the package when installed, in `jobs/recipes` in a checkout."""
    package = Path(__file__).parent
    for folder in (package / "files", package.parents[1] / "jobs" / "recipes"):
        if (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    raise InputError("no such recipe", name, "give the path of a recipe file")


def recipe_named(text: str, folder: Path = Path(), where: str = "") -> str:
    """The file of a recipe that is given by its path from `folder`, or by the name of one that comes with raydense.

    InputError, at `where`, on an unknown name. A folder of that name, as of the data, is no recipe.
    """
    file = folder / text
    if file.is_file() or Path(text).name != text or Path(text).suffix:
        return str(file)
    if text not in recipe_names():
        raise InputError("no such recipe", f"{where}{text}", did_you_mean(text, recipe_names()))
    return str(recipe_file(text))


def recipe_names() -> list[str]:
    """The recipes that come with raydense."""
    return sorted(file.stem for file in recipe_file("quickstart").parent.glob("*.yaml"))


def described(name: str) -> tuple[str, list[str]]:
    """The first sentence about a recipe that comes with raydense, and the names that it is given, those of its base too."""
    head = recipe_file(name).read_text(encoding="utf-8").partition("\nstages:")[0]  # reading the stages of all recipes takes seconds
    content = yaml.load(head, _Once)
    below = described(Path(content["base"]).stem)[1] if "base" in content else []
    first = re.split(r"\.(?= [A-Z])", " ".join(content["description"].split()), maxsplit=1)[0]
    return first.removesuffix("."), list(dict.fromkeys([*below, *(content.get("given") or {})]))


def load_recipe(file: str | os.PathLike[str], twins: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The content of a recipe. One with `base: RECIPE` (its name, or a path from this one's folder) is that recipe with other values.

    A key of a stage that it gives stands in place of the base's; a stage of another verb stands in place of the whole stage;
    null leaves a key, or a stage, out, and a key of a stage without its default, too; a new stage comes before the first that
    names it, or else last. InputError as `load_yaml`, and where a recipe is its own base.
    """
    own = load_yaml(file)
    base = own.pop("base", None)
    if base is None:
        return own
    here = Path(file).resolve()
    if not isinstance(base, str) or here in twins:
        fix = "give the name of a recipe, or its path from the folder of this one"
        raise InputError("is no other recipe", f"{file}: base", fix)
    content = load_recipe(below := recipe_named(base, here.parent, f"{file}: base: "), (*twins, here))
    for part in ("stages", "given", "defaults"):
        if not isinstance(content.get(part) or {}, dict):
            raise InputError("holds no keys", f"{below}: {part}", "give NAME: VALUE lines")
    for key, values in own.items():
        there = content.get(key) or {}
        if key == "stages":
            content[key] = _merged_stages(there, values, _swept(own.get("sweep")))
        elif key == "defaults" and isinstance(values, dict):
            content[key] = _merged(there, values)
        else:
            content[key] = {**there, **values} if key == "given" and isinstance(values, dict) else values
    return content


def recipe_content(file: str | os.PathLike[str], changes: tuple[str, ...], faults: Faults) -> dict[str, Any]:
    """The content of a recipe, its keys checked, with `changes` as `stage.key=value`, `given=value` or `seed=value`.

    What is wrong is added to `faults`; InputError where nothing can be read, or there are no stages.
    """
    content = load_recipe(file)
    for key in content:
        if key not in _KEYS:
            faults.add("unknown key", f"{file}: {key}", did_you_mean(str(key), _KEYS))
    if not isinstance(content.get("stages"), dict) or not content["stages"]:
        faults.add("no stages", file, "a recipe has `stages:`, each a name with `do: VERB` and its settings")
        faults.refuse()
    for part in ("given", "defaults"):
        content[part] = content.get(part) or {}
        if not isinstance(content[part], dict):
            faults.add("holds no keys", f"{file}: {part}", "give NAME: VALUE lines")
            content[part] = {}
        for key in [key for key in content[part] if not isinstance(key, str)]:
            faults.add("is no name", f"{file}: {part}.{key}", "put quotes around it")
            del content[part][key]
    for change in changes:
        with faults.collected():
            key, value = _parsed(change)
            apply(key, value, content, f"--set {change}")
    return content


def _swept(sweep: Any) -> dict[str, list[Any]]:
    """All values that a sweep gives to each stage."""
    found: dict[str, list[Any]] = {}
    variants = sweep.get("variants") if isinstance(sweep, dict) else None
    for changes in (sweep, *(variants.values() if isinstance(variants, dict) else ())):
        for key, value in changes.items() if isinstance(changes, dict) else ():
            found.setdefault(str(key).partition(".")[0], []).append(value)
    return found


def _merged_stages(base: dict[str, Any], own: Any, swept: dict[str, list[Any]]) -> Any:
    if not isinstance(own, dict):
        return own
    stages = dict(base)
    for name, values in own.items():
        there: Any = base.get(name)
        same = isinstance(there, dict) and isinstance(values, dict) and values.get("do", there.get("do")) == there.get("do")
        stages[name] = _merged(there, values) if same else values
    order = _order(list(base), [name for name in own if name not in base], {name: [stages[name], swept.get(name)] for name in stages})
    return {name: stages[name] for name in order if stages[name] is not None}


def _merged(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """`base` with the keys of `own` in their place, in groups too. A null stays: it keeps a default of the recipe switched off."""
    both = {k: _merged(base[k], v) if isinstance(v, dict) and isinstance(base.get(k), dict) else v for k, v in own.items()}
    return {**base, **both}


def without_nulls(values: dict[str, Any], whole: Collection[str] = (), group: str = "") -> dict[str, Any]:
    """`values` without the keys that are null, in groups too, which are not `whole` values by their dotted keys; `group` is theirs."""

    def kept(key: str, value: Any) -> Any:
        within = isinstance(value, dict) and f"{group}{key}" not in whole
        return without_nulls(value, whole, f"{group}{key}.") if within else value

    return {key: kept(key, value) for key, value in values.items() if value is not None}


def _order(names: list[str], new: list[str], stages: dict[str, Any]) -> list[str]:
    """`names` with each of `new` before the first stage that names it, also in a sweep, or else after all, in their given order."""
    order, last = list(names), len(names)
    for name in reversed(new):
        users = (place for place, other in enumerate(order) if name in named_in(stages[other]))
        place = next(users, last)
        order.insert(place, name)
        last += place < last
    return order


def named_in(value: Any) -> list[str]:
    """The names that a stage refers to."""
    if isinstance(value, dict | list):
        return [name for inner in (value.values() if isinstance(value, dict) else value) for name in named_in(inner)]
    return REFERENCE.findall(value) if isinstance(value, str) else []


class _GivenTwice(yaml.MarkedYAMLError):
    """A key that stands twice in one place, of which YAML would silently take the second."""


class _Once(yaml.SafeLoader):
    """YAML's safe loader, which refuses a key given twice. 012, 12:30, no and dates are texts, as in YAML 1.2."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise _GivenTwice(problem=f"{key.value!r} is given twice", problem_mark=key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        return super().construct_mapping(node, deep)


for _tag, _form, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F]+)", list("-+0123456789")),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", list("-+.0123456789")),
    ("merge", r"<<", ["<"]),
):
    _Once.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_form})\Z"), _first)


def load_yaml(file: str | os.PathLike[str], is_: str = "a recipe, as jobs/recipes/quickstart.yaml") -> dict[str, Any]:
    """The keys of a YAML file, each given once; InputError where there are none, or no file: `is_` says what to give."""
    try:
        content = yaml.load(Path(file).read_text(encoding="utf-8"), _Once)
    except FileNotFoundError:
        raise InputError("no such file", file, f"give {is_}") from None
    except RecursionError:
        raise InputError("nested too deeply", file, "fix the file") from None
    except (*_UNREADABLE, IsADirectoryError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}" if mark else file
        if isinstance(error, _GivenTwice):
            raise InputError(str(error.problem), where, "leave one of them out") from None
        raise InputError(f"not YAML: {getattr(error, 'problem', None) or error}", where, "fix the file") from None
    if not isinstance(content, dict):
        raise InputError("holds no keys", file, "give KEY: VALUE lines")
    return content


def _parsed(change: str) -> tuple[str, Any]:
    key, equals, text = change.partition("=")
    if not equals:
        raise InputError("has no '='", f"--set {change}", "give stage.key=value, or seed=value")
    try:
        value = yaml.load(text, _Once) if text else ""
    except (*_UNREADABLE, RecursionError):
        raise InputError(f"{text[:80]!r} is not YAML", f"--set {key}", "put quotes around it") from None
    cut = re.split(r"(?:^|\s)#", text, maxsplit=1)[0].strip()
    if cut != text.strip() and (value == cut or not cut):  # YAML took the end of a text for a comment
        return key, text
    if value in (None, "") and cut not in _EMPTY:  # as an anchor or the head of a block: a sign to YAML alone
        return key, text
    return key, value


def apply(key: str, value: Any, content: dict[str, Any], where: str) -> None:
    """Give `stage.key`, `defaults.key`, a given name or the seed of a recipe's content another value; null leaves a key out.

    InputError, at `where`, if there is no such stage or name.
    """
    name, dot, field = key.partition(".")
    if dot and name == "defaults":
        put(content["defaults"], field, value)
    elif dot:
        if not isinstance(content["stages"].get(name), dict):
            raise InputError(f"no stage {name!r}", where, did_you_mean(name, content["stages"]))
        content["stages"][name] = dict(content["stages"][name])
        put(content["stages"][name], field, value)
    elif key == "seed":
        content["seed"] = value
    elif key in content["given"]:
        content["given"][key] = value
    else:
        if key in content["stages"]:
            raise InputError("is a stage", where, f"give one of its settings, as {key}.KEY=VALUE")
        raise InputError(f"the recipe is given no {key!r}", where, did_you_mean(key, [*content["given"], "seed"]))
