"""The routes of an app as OpenAPI describes them, and that as a page without scripts, which loads nothing from elsewhere."""

from __future__ import annotations

from typing import Any

from jinja2 import Template

from raydense.settings import BaseSettings

_PAGE = Template(
    """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{{ info.title }}: HTTP</title>
<style>body{font:16px/1.5 system-ui;max-width:60em;margin:2em auto;padding:0 1em}code,pre{background:#8882;padding:.1em .3em}
td,th{text-align:left;vertical-align:top;padding:.2em 1em .2em 0}h2{margin-top:2em}:root{color-scheme:light dark}</style>
<h1>{{ info.title }}</h1><p>{{ info.description }}</p>
<p>Errors are JSON: <code>{"error": "..."}</code>. The same as <a href="openapi.json">OpenAPI</a>.</p>
{% for path, methods in paths.items() %}{% for method, route in methods.items() %}
<h2><code>{{ method | upper }} {{ path }}</code></h2><p>{{ route.description }}</p>
{% if route.requestBody %}<table><tr><th>field<th>meaning<th>default</tr>
{% for name, field in route.requestBody.content["application/json"].schema.properties.items() %}
<tr><td><code>{{ name }}</code><td>{{ field.description }}<td>{{ "required" if name in route.requestBody.content["application/json"].schema.required else field.default | default(none) | tojson }}</tr>
{% endfor %}</table>{% endif %}
{% for answer in [(route.responses.get("200") or {}).get("content", {}).get("application/json", {}).get("example")] if answer %}<p>Answers</p><pre>{{ answer | tojson(indent=1) }}</pre>{% endfor %}
{% if route.responses %}<p>Statuses: {% for status, one in route.responses.items() %}{{ status }} {{ one.description }}{{ ", " if not loop.last }}{% endfor %}</p>{% endif %}
{% endfor %}{% endfor %}</html>""",
    autoescape=True,
)
_STATUSES = {
    401: "no token, or a wrong one",
    403: "asked for by another name than localhost, where there is no token",
    404: "there is none",
    413: "the body is too large",
    422: "the request is not one",
    503: "cannot be answered now: ask again after Retry-After seconds",
    504: "took too long",
}
_HIT = {"id": "p7", "score": 0.73, "title": "of texts", "text": "of texts", "found": {"bm25": 2, "dense": 1}, "reranked": True}
ANSWERS: dict[str, Any] = {
    "/search": {
        "results": [[_HIT]],
        "index": "fingerprint, or a list",
        "version": 1,
        "each": [{"name": "bm25", "results": [[]]}],
        "truncated": [0],
    },
    "/retrieve": {"result": [[{"document": {"id": "p7", "contents": '"title"\ntext'}, "score": 0.73}]]},
    "/passages": {"id": "p7", "title": "a title", "text": "a text"},
    "/health": {"ready": True, "index": "fingerprint", "version": 1},
}


def responses(answer: str = "", *statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a route answers, in OpenAPI: an example of `ANSWERS`, and the statuses other than 200 with their error."""
    refused = {"ready": False, "why": "what, or `error`"} if answer == "/health" else {"error": "what, where, and how to fix it"}
    error = {"content": {"application/json": {"example": refused}}}
    found: dict[int | str, dict[str, Any]] = {status: {"description": _STATUSES[status], **error} for status in statuses}
    if answer:
        found[200] = {
            "description": "the answer; what is not asked for is left out",
            "content": {"application/json": {"example": ANSWERS[answer]}},
        }
    return found


def body_of(settings: type[BaseSettings]) -> dict[str, Any]:
    """What a route that reads its body as these settings says of itself in OpenAPI."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": settings.model_json_schema()}}}}


def docs_page(openapi: dict[str, Any]) -> str:
    """The description as HTML."""
    return _PAGE.render(openapi)
