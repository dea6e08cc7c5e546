"""Whether a request names this machine alone as its `Host`.

A page of another site can have its own name lead to 127.0.0.1 (DNS rebinding); a browser on this machine then lets it read what a server at the
loopback answers. Its requests have that name as `Host`.
"""

from __future__ import annotations

import re

from raydense.serving.refusal import Refused

_LOCAL = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[?::1\]?)(:\d*)?", re.IGNORECASE)


def is_local(host: str) -> bool:
    """Whether a host, with or without a port, is localhost or an address of the loopback interface."""
    return bool(_LOCAL.fullmatch(host))


def require_local(host: str) -> None:
    """`Refused` unless the header `Host` is that of the loopback interface, or absent, as no browser leaves it."""
    if host and not is_local(host):
        raise Refused(403, "this server has no token: it answers where Host is localhost, 127.0.0.1 or [::1], not at another name")
