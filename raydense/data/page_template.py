"""Templates of the HTML pages that raydense writes and serves: what they show is escaped, and what they lack is an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

import jinja2


def page_template(
    package: str, name: str, filters: Mapping[str, Callable[..., Any]] | None = None, policies: Mapping[str, Any] | None = None
) -> jinja2.Template:
    """The template `name` that lies in a package; `filters` and `policies` are those of Jinja that it has besides."""
    page = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page.filters.update(filters or {})
    page.policies.update(policies or {})
    return page.from_string(files(package).joinpath(name).read_text(encoding="utf-8"))
