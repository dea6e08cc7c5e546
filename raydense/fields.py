"""The kinds of fields of settings (an input, a setting, a resource, a group), and the types of their values."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, overload

from pydantic import BeforeValidator, Field
from pydantic.fields import FieldInfo

_LARGEST = 2**31  # a limit from here on is that of a number format
_WORD = re.compile(r"(?:\([^)]*\)|[^\s,])+")


def artifact(kind: str, help: str, default: Any = ..., **limits: Any) -> Any:
    """A field that names an input: the folder of an artifact of `kind`."""
    return Field(default, description=help, json_schema_extra={"artifact": kind}, **limits)


def resource(default: Any, help: str, **limits: Any) -> Any:
    """A field that decides how the work is distributed, never what comes out."""
    return Field(default, description=help, json_schema_extra={"resource": True}, **limits)


def group(help: str, default: Any = None) -> Any:
    """A field that is a group of settings; its default is None (the group is optional) or the group's class, with its own defaults."""
    return Field(default_factory=default, description=help) if default is not None else Field(None, description=help)


def setting(default: Any, help: str, **limits: Any) -> Any:
    """A field that shapes the output."""
    return Field(default, description=help, **limits)


def words(value: object) -> object:
    """The words of a text, which blanks or commas separate that stand in no parentheses; also of each text of a tuple, as of a flag given twice."""
    if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
        return [word for item in value for word in _WORD.findall(item)]
    return _WORD.findall(value) if isinstance(value, str) else value


def takes_words(field: FieldInfo) -> bool:
    """Whether a text stands for several values of the field, as its words."""
    return any(isinstance(one, BeforeValidator) and one.func is words for one in field.metadata)


def range_of(field: FieldInfo) -> str:
    """The numbers that a field takes, as "0 to 1"; "" where there is no highest and the lowest is 0 or 1, as of counts."""
    limits: dict[str, float] = {
        name: getattr(one, name) for one in field.metadata for name in ("ge", "gt", "le", "lt") if hasattr(one, name)
    }
    low, high = limits.get("ge", limits.get("gt")), limits.get("le", limits.get("lt"))
    if high is not None and high >= _LARGEST:
        high = None
    if low is None or (high is None and low in (0, 1)):
        return ""
    above = "above " if "gt" in limits else ""
    if high is None:
        return f"{above or 'at least '}{low:,}"
    return f"{above}{low:,} to {'below ' if 'lt' in limits else ''}{high:,}"


def _one_as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _one_or_more(value: object) -> object:
    return value[0] if isinstance(value, list | tuple) and len(value) == 1 else value


def _number_or_auto(value: object) -> object:
    whole = str(value).isdigit() and not isinstance(value, bool)
    if value != "auto" and not whole:
        raise ValueError("must be a whole number of at least 0, or auto")
    return value


def _two_numbers(value: object) -> object:
    """The numbers of a text; one number, in a text or by itself, stands for both."""
    numbers = [value] if isinstance(value, int) and not isinstance(value, bool) else words(value)
    return numbers * 2 if isinstance(numbers, list) and len(numbers) == 1 else numbers


Pair = Annotated[tuple[int, int], BeforeValidator(_two_numbers)]


NumberOrAuto = Annotated[int | Literal["auto"], BeforeValidator(_number_or_auto)]


if TYPE_CHECKING:  # what type checkers see: a path or an artifact may be given where text is kept

    class Folder:
        """A folder, given as text, a path or an artifact, and stored as text."""

        @overload
        def __get__(self, settings: None, of: Any) -> Self: ...
        @overload
        def __get__(self, settings: object, of: Any) -> str: ...
        def __get__(self, settings: object | None, of: Any) -> Self | str: ...
        def __set__(self, settings: object, given: str | os.PathLike[str]) -> None: ...

    class FolderOrNone:
        """A folder that may be left out."""

        @overload
        def __get__(self, settings: None, of: Any) -> Self: ...
        @overload
        def __get__(self, settings: object, of: Any) -> str | None: ...
        def __get__(self, settings: object | None, of: Any) -> Self | str | None: ...
        def __set__(self, settings: object, given: str | os.PathLike[str] | None) -> None: ...

    class Folders:
        """Folders, each with an optional name before it, as `dense=runs/dense`; stored as a list of text; a text or a path is one folder."""

        @overload
        def __get__(self, settings: None, of: Any) -> Self: ...
        @overload
        def __get__(self, settings: object, of: Any) -> list[str]: ...
        def __get__(self, settings: object | None, of: Any) -> Self | list[str]: ...
        def __set__(self, settings: object, given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> None: ...

    class OneOrMore:
        """One folder, stored as text, or several, each with an optional name before it, stored as a list of text; may be left out."""

        @overload
        def __get__(self, settings: None, of: Any) -> Self: ...
        @overload
        def __get__(self, settings: object, of: Any) -> str | list[str] | None: ...
        def __get__(self, settings: object | None, of: Any) -> Self | str | list[str] | None: ...
        def __set__(self, settings: object, given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None) -> None: ...

    class Words:
        """Words, given as a list or as text with blanks or commas between them, and stored as a list."""

        @overload
        def __get__(self, settings: None, of: Any) -> Self: ...
        @overload
        def __get__(self, settings: object, of: Any) -> list[str]: ...
        def __get__(self, settings: object | None, of: Any) -> Self | list[str]: ...
        def __set__(self, settings: object, given: str | Sequence[str]) -> None: ...

    class Texts(Words):
        """Texts with any blanks and commas in them, stored as a list; a text is one."""
else:
    Folder, FolderOrNone = str, str | None
    Folders = Annotated[list[str], BeforeValidator(_one_as_list)]
    OneOrMore = Annotated[str | list[str] | None, BeforeValidator(_one_or_more)]
    Words = Annotated[list[str], BeforeValidator(words)]
    Texts = Annotated[list[str], BeforeValidator(_one_as_list)]
