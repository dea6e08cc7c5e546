"""The token that callers of an app send (`Authorization: Bearer TOKEN`): from the environment of who starts the app, which hands on its hash alone."""

from __future__ import annotations

import hashlib
import hmac
import os

from raydense.errors import InputError
from raydense.serving.refusal import Refused

VARIABLE = "RAYDENSE_TOKEN"


def expected() -> str:
    """The SHA-256, in hex, of the token in `RAYDENSE_TOKEN`; "" where it is not set, and nobody is asked. InputError if it is empty, or not ASCII."""
    token = os.environ.get(VARIABLE)
    if token is not None and not token.strip():
        raise InputError("is empty", VARIABLE, "set it to a long random text, or unset it to ask nobody for a token")
    if token and not token.isascii():  # a header is no UTF-8 text
        raise InputError("has other characters than ASCII", VARIABLE, "set it to a long random text of letters and digits")
    return hashed(token.strip()) if token else ""


def allows(expected: str, authorization: str) -> bool:
    """Whether the header `Authorization` of a request has the token whose hash is `expected`; the time taken does not depend on how much is right."""
    scheme, _, token = authorization.partition(" ")
    return not expected or (hmac.compare_digest(expected, hashed(token.strip())) and scheme.lower() == "bearer")


def require(expected: str, authorization: str) -> None:
    """`Refused` unless the header has the token."""
    if not allows(expected, authorization):
        raise Refused(401, "this server asks for a token: send the header Authorization: Bearer TOKEN")


def hashed(token: str) -> str:
    """The SHA-256 of a token, in hex."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
