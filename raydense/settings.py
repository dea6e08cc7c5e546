"""The base of all settings: one typed model per stage gives the YAML schema of a recipe, the command line's flags and help, and validation.

Nothing here imports Ray, torch, NumPy or FAISS. A field made with `artifact` names an input folder; one made with `resource` decides
how the work is distributed, not what comes out, and so is no part of the output's fingerprint.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from raydense.errors import InputError, InputErrors, did_you_mean
from raydense.fields import (
    Folder,
    FolderOrNone,
    Folders,
    NumberOrAuto,
    OneOrMore,
    Pair,
    Texts,
    Words,
    artifact,
    group,
    resource,
    setting,
    words,
)
from raydense.forecast import Forecast, Known
from raydense.storage import Place, checked, folders_by_name, is_hub_name, model_place, named, named_folders

__all__ = [
    "BaseSettings",
    "Folder",
    "FolderOrNone",
    "Folders",
    "NumberOrAuto",
    "OneOrMore",
    "Pair",
    "Settings",
    "Texts",
    "Words",
    "artifact",
    "flat",
    "group",
    "group_of",
    "put",
    "resource",
    "setting",
    "words",
]


def _place(item: str) -> str:
    """A path, or NAME=path, as `storage.checked` gives it."""
    name, path = named(item)
    return f"{name}={checked(path)}" if name else checked(path)


class BaseSettings(BaseModel):
    """Settings that a user gives: unknown keys are refused, and each fault is one line.

    A field whose type is a class of settings, or that class or None, is a group. Its keys are written `dev: {every: 200}` in a
    file, `--dev.every 200` on the command line, and `dev.every` in messages and fingerprints. `renamed` maps old keys, which
    are refused, to their new names. `recorded` maps keys to the names under which outputs record them, which are those of before a
    renaming: what was made before stays valid. If the value of one key (`chosen_by`) decides which other keys exist, `chosen` returns
    the class that has them. `scratch` has the keys of models that may be `tiny`, a small one from scratch.
    """

    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False, protected_namespaces=())
    renamed: ClassVar[dict[str, str]] = {}
    recorded: ClassVar[dict[str, str]] = {}
    chosen_by: ClassVar[str] = ""
    scratch: ClassVar[tuple[str, ...]] = ()

    if not TYPE_CHECKING:

        def __new__(cls, **values):
            """An instance of the class that has these keys."""
            return super().__new__(cls.chosen(values, f"{cls.__name__}.") if values else cls)

        def __init__(self, **values):
            """Check `values`; the first fault as an InputError that names the key and the fix."""
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise _faults(type(self), error, f"{type(self).__name__}.")[0] from None

        __init__.__pydantic_base_init__ = True  # pydantic makes the groups inside without it, so that a fault has its whole key

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """Only what was given, for a short repr; the rest has its default."""
        return ((name, getattr(self, name)) for name in type(self).model_fields if name in self.model_fields_set)

    @field_validator("*", mode="before")
    @classmethod
    def _path_as_text(cls, value: object, info: ValidationInfo) -> object:
        """Artifacts and paths may stand where a folder is named; one of a bucket is checked before anything repeats it."""
        items = [os.fspath(item) if isinstance(item, os.PathLike) else item for item in (value if isinstance(value, list) else [value])]
        if info.field_name == "output" or info.field_name in cls.inputs():
            items = [_place(item) if isinstance(item, str) else item for item in items]
        reads_model = cls.inputs().get(str(info.field_name)) == "model" and info.field_name not in cls.scratch
        if reads_model and any("tiny" in (item, str(item).partition("=")[2]) for item in items):  # of `models`, NAME=folder
            raise ValueError("tiny is a small model from scratch, which only training starts from; write ./tiny for a folder of that name")
        return items if isinstance(value, list) else items[0]

    @classmethod
    def read(cls, values: dict[str, Any], where: str = "", flags: Collection[str] = ()) -> Self:
        """Validate `values`; InputError, or InputErrors where there are several faults, that name the key and the fix.

        `flags` are the keys whose values are not from `where`, but from the command line.
        """
        kind = cls.chosen(values, "--" if cls.chosen_by in flags else where)
        try:
            return kind.model_validate(values)
        except ValidationError as error:
            faults = _faults(kind, error, where, flags)
            raise (InputErrors(*faults) if len(faults) > 1 else faults[0]) from None

    @classmethod
    def chosen(cls, values: dict[str, Any], where: str = "") -> type[Self]:
        """The class that reads `values`: this one, or the one that the value of its key `chosen_by` names; InputError if none."""
        given = values.get(cls.chosen_by) if cls.chosen_by else None
        return cls if given is None else cls._named_by(given, _named(cls.chosen_by, where))

    @classmethod
    def _named_by(cls, value: Any, where: str) -> type[Self]:
        """The class that the value of `chosen_by` names; InputError, at `where`, if there is none."""
        raise NotImplementedError(cls.chosen_by)

    @classmethod
    def refuse_unknown(cls, key: str, where: str) -> None:
        """InputError where no key and no group is called `key`, which may be dotted."""
        if key not in cls.all_fields() and key not in cls.model_fields:
            raise _unknown(cls, key, where)

    @classmethod
    @cache  # asked for at every value that is validated
    def all_fields(cls) -> dict[str, FieldInfo]:
        """Every key that takes a value, with its field; those of groups are dotted, as `dev.every`."""
        found: dict[str, FieldInfo] = {}
        for name, field in cls.model_fields.items():
            group = group_of(field)
            found |= {f"{name}.{key}": inner for key, inner in group.all_fields().items()} if group else {name: field}
        return found

    @classmethod
    def required(cls, key: str) -> str:
        """What help says of a key without a default: "required", or "required with dev" for one of a group that may be left out; else ""."""
        name, dot, _ = key.partition(".")
        if not cls.all_fields()[key].is_required():
            return ""
        return f"required with {name}" if dot and cls.model_fields[name].default_factory is None else "required"

    @classmethod
    def takes(cls, values: dict[str, Any]) -> set[str]:
        """The keys that have an effect together with `values`: the defaults of a recipe are applied to these."""
        return set(cls.all_fields())

    @classmethod
    @cache
    def inputs(cls) -> dict[str, str]:
        """The keys that name input artifacts, with the kind of each."""
        extras = {key: field.json_schema_extra for key, field in cls.all_fields().items()}
        return {key: str(extra["artifact"]) for key, extra in extras.items() if isinstance(extra, dict) and "artifact" in extra}

    @classmethod
    def refuse_renamed(cls, key: str, where: str) -> None:
        """InputError, with the new key, where `key` is an old one."""
        if key in cls.renamed:
            raise InputError("was renamed", _named(key, where), f"write {_named(cls.renamed[key], '--' if where == '--' else '')}")

    def value_of(self, key: str) -> Any:
        """The value of a key, which may be dotted; None if its group was not given."""
        found: Any = self
        for name in key.split("."):
            found = None if found is None else getattr(found, name)
        return found

    def replaced(self, changes: dict[str, Any]) -> Self:
        """A copy with other values of some keys, which may be dotted; they are not checked."""
        own = {key: value for key, value in changes.items() if "." not in key}
        for name in {key.partition(".")[0] for key in changes.keys() - own.keys()}:
            inner = {key.partition(".")[2]: value for key, value in changes.items() if key.startswith(f"{name}.")}
            own[name] = getattr(self, name).replaced(inner)
        return self.model_copy(update=own)

    def left_open(self) -> set[str]:
        """The keys without a value that the stage fills in when it runs, from a model or a pool; most stages have none."""
        return set()

    def given_keys(self) -> set[str]:
        """The keys that were given a value, not left to their default."""
        found: set[str] = set()
        for name in self.model_fields_set:
            value = getattr(self, name)
            found |= {f"{name}.{key}" for key in value.given_keys()} if isinstance(value, BaseSettings) else {name}
        return found

    def given_inputs(self) -> Iterator[tuple[str, str, str, str]]:
        """Each input that is given: its key, kind, name and path; of a list each item, named as `named_folders` does, others have no name."""
        for key, kind in self.inputs().items():
            value = self.value_of(key)
            items = named_folders(value) if isinstance(value, list) else [] if value is None else [("", value)]
            yield from ((key, kind, name, path) for name, path in items)

    def with_inputs(self, change: Callable[[str, str, str], str]) -> Self:
        """A copy in which the path of each input that is given is what `change` makes of its key, kind and path."""
        changes: dict[str, Any] = {}
        for key, kind in self.inputs().items():
            value = self.value_of(key)
            if isinstance(value, list):
                pairs = [(name, change(key, kind, path)) for name, path in map(named, value)]
                changes[key] = [f"{name}={path}" if name else path for name, path in pairs]
            elif value is not None:
                changes[key] = change(key, kind, value)
        return self.replaced(changes)

    def is_path(self, key: str, value: str) -> bool:
        """Whether an input is a path; a data set's id, a model of the Hub and `tiny` are none."""
        return self.inputs()[key] != "model" or not (value == "tiny" or is_hub_name(value))

    def located(self) -> Self:
        """A copy whose inputs are absolute paths, for workers: they may have another working directory."""

        def located(key: str, kind: str, path: str) -> str:
            if kind == "model":
                return path if path == "tiny" else model_place(path).located
            return Place.of(path).located

        return self.with_inputs(located)

    def _refuse_given(self, names: Iterable[str], by: str) -> None:
        """ValueError if any of `names` (keys or groups) was given although it has no effect; `by` names the setting that decides it."""
        there = {key for key in self.given_keys() if self.value_of(key) is not None}
        given = [name for name in names if name in there or any(key.startswith(f"{name}.") for key in there)]
        if given:
            raise ValueError(f"{by} does not use {', '.join(given)}: leave {'it' if len(given) == 1 else 'them'} out")

    def _refuse_same_names(self, *keys: str) -> None:
        """ValueError if two folders of one of `keys` have the same name: what is made of them is named so."""
        for key in keys:
            given = self.value_of(key)
            try:
                folders_by_name(given if isinstance(given, list) else [], key)
            except InputError as error:
                raise ValueError(str(error)) from None


class Settings(BaseSettings):
    """The settings of every stage: its output folder.

    `newer` names settings that were added later; at their default they are no part of a fingerprint, so older outputs stay valid.
    """

    newer: ClassVar[tuple[str, ...]] = ()
    output: Folder = setting(..., "the folder to make; it appears whole or not at all", min_length=1)

    def forecast(self, known: Known) -> Forecast:
        """What the stage will need and make, from the sizes of its inputs; an empty forecast where these are not known."""
        return Forecast()

    def outside_code(self) -> dict[str, str]:
        """Digests of the code that shapes the output and is not raydense's, by what it is, as `method_code`; "" for one of raydense."""
        return {}

    def shaping(self) -> dict[str, Any]:
        """The settings that shape the output, as they are `recorded`: not its folder, inputs, resources, nor newer settings at their default.

        A group that was not given has no keys here.
        """
        shaping = {}
        given = flat(self.model_dump(mode="json"))
        for key, field in self.all_fields().items():
            shapes = key in given and key != "output" and not isinstance(field.json_schema_extra, dict)
            if shapes and not (key in self.newer and given[key] == field.default):
                shaping[self.recorded.get(key, key)] = given[key]
        return shaping


def group_of(field: FieldInfo) -> type[BaseSettings] | None:
    """The settings class of a field that is a group; None for a single value."""
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseSettings):
            return kind
    return None


def flat(values: dict[str, Any], whole: Collection[str] = (), group: str = "") -> dict[str, Any]:
    """`values` with the keys of groups dotted; the mappings at the keys in `whole`, dotted from `group` on, are values."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and f"{group}{name}" not in whole:
            found |= {f"{name}.{key}": inner for key, inner in flat(value, whole, f"{group}{name}.").items()}
        else:
            found[name] = value
    return found


def put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a key of `values`, which may be dotted; missing groups are created."""
    name, dot, inner = key.partition(".")
    if dot:
        there = values.get(name)
        values[name] = dict(there) if isinstance(there, dict) else {}
        put(values[name], inner, value)
    else:
        values[name] = value


def _named(key: str, where: str) -> str:
    """A key as messages name it: `where` is "--" for flags, otherwise a prefix."""
    if where == "--":
        return f"--{key.replace('_', '-')}" if key else ""
    return f"{where}{key}" if key else where.rstrip(".: ")


def _faults(cls: type[BaseSettings], error: ValidationError, where: str, flags: Collection[str] = ()) -> list[InputError]:
    """What pydantic found, unknown keys first: others may follow from them."""
    found, given = [], set(flags) - {"output"}  # which every command has
    for one in sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden"):
        above = accumulate(map(str, one["loc"]), "{}.{}".format)
        by_flag = any(key in flags for key in above) if one["loc"] else given
        found.append(_fault(cls, one, "--" if by_flag else where))
    return found


def _fault(cls: type[BaseSettings], fault: ErrorDetails, where: str) -> InputError:
    key = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return _unknown(cls, key, where)
    name, field = _named(key, where), _field(cls, fault["loc"])
    meaning = field.description or "" if field else ""
    if fault["type"] == "missing":
        return InputError("missing", name, f"give it: {meaning}")
    if field and (group := group_of(field)):
        if fault["type"] == "model_type":
            below = next(iter(group.all_fields()))
            return InputError(f"is a group of keys (given: {fault['input']!r})", name, f"give them below it, as {key}.{below}")
        key = ""  # what was given is the whole group
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "too_short":
        message = "needs {min_length} or more, not {actual_length}".format(**fault["ctx"])
    given = f" (given: {fault['input']!r})" if key else ""
    fix = f"it is: {meaning}" if key and meaning else ""
    # what YAML took for a number, say; a value from nowhere is a program's
    if fault["type"] == "string_type" and where not in ("", "--") and not isinstance(fault["input"], list):
        fix = f"""{fix}; if it is a text, put quotes around it; with --set, inside others: KEY='"..."'""".removeprefix("; ")
    return InputError(f"{message[:1].lower()}{message[1:]}{given}", name, fix)


def _unknown(cls: type[BaseSettings], key: str, where: str) -> InputError:
    try:
        cls.refuse_renamed(key, where)
    except InputError as renamed:
        return renamed
    if key in cls.all_fields():  # written with its dot, where a file has groups
        group, _, inner = key.partition(".")
        return InputError("is a key of a group", _named(key, where), f"write {group}: {{{inner}: VALUE}}")
    return InputError("unknown key", _named(key, where), did_you_mean(key, cls.all_fields()))


def _field(cls: type[BaseSettings], loc: tuple[int | str, ...]) -> FieldInfo | None:
    """The field at a location that pydantic reports, or the field around it."""
    field = cls.model_fields.get(str(loc[0])) if loc else None
    group = group_of(field) if field else None
    return _field(group, loc[1:]) or field if group else field
