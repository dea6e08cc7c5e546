"""The page on which people search: one file without parts from elsewhere, which asks `POST /search`."""

from __future__ import annotations

from collections.abc import Sequence

from raydense.data.marking import marking_script
from raydense.data.page_template import page_template


def search_page(names: Sequence[str], texts: bool) -> str:
    """The HTML of the page: `names` of the indexes, whose hits it shows apart where there are several, and whether passages have texts."""
    return page_template("raydense.serving", "page.html.j2").render(names=list(names), texts=texts, marking=marking_script())
