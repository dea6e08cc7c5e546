"""Places where bytes lie, and the artifacts that stages hand to each other."""

from raydense.storage import bucket_place, local_place  # noqa: F401 - each registers its kind of place
from raydense.storage.artifact import MANIFEST, WORK, Artifact, File, damaged_file, read_manifest, verify_all
from raydense.storage.digest import digest_of, write_json
from raydense.storage.draft import Draft
from raydense.storage.files import write_whole
from raydense.storage.holds import releases_outputs, stays_held
from raydense.storage.hub_place import is_hub_name, model_place
from raydense.storage.paths import named, safe_name
from raydense.storage.place import Found, Place, checked, visible
from raydense.storage.provenance import (
    check_made_with,
    check_unchanged,
    differences,
    fingerprint_of,
    folders_by_name,
    input_fingerprints,
    named_folders,
    provenance,
    provenance_of,
    refuse_inside,
    versions,
)
from raydense.storage.unfinished import begun_from, commits_in, made_or_begun_from

__all__ = [
    "MANIFEST",
    "WORK",
    "Artifact",
    "Draft",
    "File",
    "Found",
    "Place",
    "begun_from",
    "check_made_with",
    "check_unchanged",
    "checked",
    "commits_in",
    "damaged_file",
    "differences",
    "digest_of",
    "fingerprint_of",
    "folders_by_name",
    "input_fingerprints",
    "is_hub_name",
    "made_or_begun_from",
    "model_place",
    "named",
    "named_folders",
    "provenance",
    "provenance_of",
    "read_manifest",
    "refuse_inside",
    "releases_outputs",
    "safe_name",
    "stays_held",
    "verify_all",
    "versions",
    "visible",
    "write_json",
    "write_whole",
]
