"""The damaged files of artifacts, as `raydense verify` finds them."""

from raydense.storage import Artifact, Place, verify_all


def damaged(folder: Artifact | Place | str) -> list[tuple[str, str]]:
    """The path of each damaged file at and below `folder`, and what is wrong with it."""
    return [(file, wrong) for _, file, wrong in verify_all(folder) if wrong]
