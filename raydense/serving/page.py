"""The page on which people search: one file without parts from elsewhere, which asks `POST /search`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

import jinja2

from raydense.data.marking import marking_script


def search_page(names: Sequence[str], texts: bool) -> str:
    """The HTML of the page: `names` of the indexes, whose hits it shows apart where there are several, and whether passages have texts."""
    page = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = files("raydense.serving").joinpath("page.html.j2").read_text(encoding="utf-8")
    return page.from_string(source).render(names=list(names), texts=texts, marking=marking_script())
