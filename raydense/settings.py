"""One typed model per stage: at once the YAML schema of a recipe, the flags of the command line, their help, and the validation.

Nothing here imports Ray, torch or FAISS. A field made with `artifact` names an input folder; one made with `resource` says how
the work is spread, not what comes out, and so is no part of the output's fingerprint.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from raydense import storage
from raydense.errors import InputError, did_you_mean


def artifact(kind: str, help: str, default: Any = ..., **limits: Any) -> Any:
    """A field that names an input: a folder of `kind`."""
    return Field(default, description=help, json_schema_extra={"artifact": kind}, **limits)


def resource(default: Any, help: str, **limits: Any) -> Any:
    """A field that says how the work is spread; the output is the same whatever it is."""
    return Field(default, description=help, json_schema_extra={"resource": True}, **limits)


def setting(default: Any, help: str, **limits: Any) -> Any:
    """A field that shapes the output."""
    return Field(default, description=help, **limits)


def words(value: object) -> object:
    return value.replace(",", " ").split() if isinstance(value, str) else value


def _place(item: str) -> str:
    """A path, or NAME=path, as `storage.checked` gives it."""
    name, path = storage.named(item)
    return f"{name}={storage.checked(path)}" if name else storage.checked(path)


def _number_or_auto(value: object) -> object:
    whole = str(value).isdigit() and not isinstance(value, bool)
    if value != "auto" and not whole:
        raise ValueError("must be a whole number of at least 0, or auto")
    return value


Words = Annotated[list[str], BeforeValidator(words)]
Pair = Annotated[tuple[int, int], BeforeValidator(words)]
NumberOrAuto = Annotated[int | Literal["auto"], BeforeValidator(_number_or_auto)]


class BaseSettings(BaseModel):
    """What a person gives, checked: unknown keys are refused, and the first fault is one line."""

    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False, protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def _path_as_text(cls, value: object, info: ValidationInfo) -> object:
        """Artifacts and paths may stand where a folder is named; one of a store is looked over before anything repeats it."""
        items = [os.fspath(item) if isinstance(item, os.PathLike) else item for item in (value if isinstance(value, list) else [value])]
        if info.field_name == "output" or info.field_name in cls.inputs():
            items = [_place(item) if isinstance(item, str) else item for item in items]
        return items if isinstance(value, list) else items[0]

    def located(self) -> Self:
        """A copy whose inputs are absolute paths, for workers: they may have another working directory."""
        paths = {n: v for n in self.inputs() if isinstance(v := getattr(self, n), str) and not (n == "model" and v == "tiny")}
        return self.model_copy(update={n: storage.absolute(v) for n, v in paths.items()})

    @classmethod
    def read(cls, values: dict[str, Any], where: str = "") -> Self:
        """Validate `values`; the first fault as an InputError that names the key and the fix."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise _first_fault(cls, error, where) from None

    @classmethod
    def inputs(cls) -> dict[str, str]:
        """The fields that name input artifacts, with the kind of each."""
        extras = {n: f.json_schema_extra for n, f in cls.model_fields.items()}
        return {n: str(e["artifact"]) for n, e in extras.items() if isinstance(e, dict) and "artifact" in e}

    def _refuse_given(self, names: Iterable[str], by: str) -> None:
        """ValueError where some of `names` were given, which mean nothing `by` another setting's value."""
        given = [name for name in names if name in self.model_fields_set and getattr(self, name) is not None]
        if given:
            raise ValueError(f"{by} does not use {', '.join(given)}: leave {'it' if len(given) == 1 else 'them'} out")


class Settings(BaseSettings):
    """What every stage has: an output folder.

    `newer` names settings that came after outputs had been made without them, which their default leaves as they are.
    """

    newer: ClassVar[tuple[str, ...]] = ()
    output: str = setting(..., "the folder to make; it appears whole or not at all", min_length=1)

    def shaping(self) -> dict[str, Any]:
        """The settings that shape the output: neither its folder, nor inputs, nor resources, nor newer ones that are the default."""
        fields = type(self).model_fields
        kept = {n for n, f in fields.items() if n != "output" and not isinstance(f.json_schema_extra, dict)}
        given = self.model_dump(mode="json", include=kept)
        return {name: value for name, value in given.items() if name not in self.newer or value != fields[name].default}

    def left_open(self) -> set[str]:
        """The settings and inputs that these do not say, and the stage takes from elsewhere when it runs; none of most stages."""
        return set()


def _first_fault(cls: type[BaseSettings], error: ValidationError, where: str) -> InputError:
    fault = error.errors()[0]
    key = ".".join(str(part) for part in fault["loc"])
    flags = where == "--"
    name = f"--{key.replace('_', '-')}" if flags and key else f"{where}{key}" if key else "" if flags else where.rstrip(".: ")
    if fault["type"] == "extra_forbidden":
        return InputError("unknown key", name, did_you_mean(key, cls.model_fields))
    if fault["type"] == "missing":
        return InputError("missing", name, f"give it: {cls.model_fields[key].description}")
    message = fault["msg"].removeprefix("Value error, ")
    given = f" (given: {fault['input']!r})" if key else ""
    field = cls.model_fields.get(str(fault["loc"][0])) if fault["loc"] else None
    return InputError(f"{message[:1].lower()}{message[1:]}{given}", name, f"it is: {field.description}" if field else "")
