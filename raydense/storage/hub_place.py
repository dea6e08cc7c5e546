"""A model of the Hugging Face Hub (`owner/name` or `hf://owner/name`, either with `@revision`): a folder in the cache of `huggingface_hub`.

`HF_ENDPOINT`, `HF_HOME`, `HF_HUB_OFFLINE` and `HF_TOKEN` mean what they mean there. Weights in safetensors, tokenizer and
configuration files are fetched, and nothing else: no pickle, and no code.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from raydense.errors import InputError, fixable
from raydense.storage.local_place import LocalPlace
from raydense.storage.paths import scheme_of
from raydense.storage.place import Place

HUB = "hf"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
_FILES = ["*.safetensors", "*.json", "vocab.txt", "merges.txt", "*.model"]
_TRUE = {"1", "on", "yes", "true"}


@dataclass(frozen=True)
class HubPlace(LocalPlace, schemes=(HUB,)):
    """The files of `repository` at one commit, `revision`, on this machine; other machines fetch the same commit."""

    everywhere = True
    repository: str = ""
    revision: str = ""

    @classmethod
    def normalised(cls, text: str) -> str:
        return f"{HUB}://{scheme_of(text)[1]}"

    @classmethod
    def parse(cls, text: str) -> HubPlace:
        name = text.removeprefix(f"{HUB}://").strip("/")
        if not _NAME.fullmatch(name):
            raise InputError("is no name of a model on the Hub", text, f"give {HUB}://owner/name or {HUB}://owner/name@revision")
        repository, _, revision = name.partition("@")
        folder = _fetched(repository, revision or None, text)
        return cls(folder, repository, folder.name)

    @classmethod
    def last_part(cls, text: str) -> str:
        """As `Place.last_part`, without the model."""
        return text.removeprefix(f"{HUB}://").strip("/").partition("@")[0].rpartition("/")[2]

    def __fspath__(self) -> str:
        return f"{HUB}://{self.repository}@{self.revision}"

    __str__ = __fspath__

    @property
    def name(self) -> str:
        return self.repository.rpartition("/")[2]

    @property
    def located(self) -> str:
        return str(self)

    def is_part(self, name: str) -> bool:
        """As `Place.is_part`: other tools put more of the same commit into the folder."""
        return any(fnmatchcase(name, pattern) for pattern in _FILES)  # as huggingface_hub matches them


def model_place(path: str | os.PathLike[str]) -> Place:
    """The place of a model: a folder, or `owner/name` of the Hub if no folder has that name; InputError if there is neither.

    Everything that opens a model that a user named calls this.
    """
    text = os.fspath(path)
    if isinstance(path, Place) or not is_hub_name(text):
        return Place.of(path)
    return HubPlace.parse(text)


def is_hub_name(text: str) -> bool:
    """Whether `text` names a model of the Hub: `hf://...`, or `owner/name` where neither that folder nor the one around it is here."""
    here = Path(text)
    return text.startswith(f"{HUB}://") or (bool(_NAME.fullmatch(text)) and not here.exists() and not here.parent.exists())


def _fetched(repository: str, revision: str | None, given: str) -> Path:
    """The folder of a commit, named by the commit; fetched if the cache lacks a file of it. `given` is what the user wrote."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    folder = "" if given.startswith(f"{HUB}://") else "no such folder, and "
    try:
        return Path(
            snapshot_download(
                repository,
                revision=revision,
                allow_patterns=_FILES,
                cache_dir=_cache(),
                endpoint=os.environ.get("HF_ENDPOINT"),
                local_files_only=os.environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE,
            )
        )
    except HFValidationError as error:
        what = f"{folder or 'is '}no name of a model on the Hub"
        raise InputError(what, given, "give the model's folder, or owner/name") from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        fix = "check owner, name and revision; a private model needs HF_TOKEN in the environment"
        raise InputError(f"{folder}no such model on the Hub", given, fix) from error
    except LocalEntryNotFoundError as error:
        fix = "connect this machine (HF_HUB_OFFLINE, HF_ENDPOINT), or fetch the model elsewhere and give its folder"
        raise InputError(f"{folder}not in the cache, and the Hub does not answer", given, fix) from error
    except (HfHubHTTPError, OSError) as error:
        if fixable(error):  # a fault of this machine's disk
            raise
        what = f"cannot be fetched from the Hub ({type(error).__name__})"
        raise InputError(what, given, "try again, or give the model's folder") from error


def _cache() -> str | None:
    """The cache that the environment names now; None for the one that huggingface_hub read when it was imported."""
    home = os.environ.get("HF_HOME")
    return os.environ.get("HF_HUB_CACHE") or (os.path.join(home, "hub") if home else None)
