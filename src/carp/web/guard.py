"""Who may ask: a request must know the token, name this machine as its host, and come from a page of this server.

The token is the first part of every path. Addresses of the application consist of letters, digits and slashes, so that
everything else, such as a path that tries to leave a folder, is refused before it is interpreted.
"""

import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_HOST = re.compile(rb"(127\.0\.0\.1|localhost)(:\d{1,5})?")  # any port: the server may be behind an SSH tunnel
_PATH = re.compile(rb"(/[a-z0-9]+)*/?")
_ASKED_BY = {b"same-origin", b"none"}  # Sec-Fetch-Site; `none` is an address that a person opened
_HEADERS = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
_FORBIDDEN, _NOT_FOUND = 403, 404


def new_token() -> str:
    """Return a random token for an address."""
    return secrets.token_hex(16)


class Guard:
    """Passes the requests that are allowed on to the application, without the token, and adds headers to answers."""

    def __init__(self, application: Application, token: str) -> None:
        self._application, self._token = application, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request (ASGI)."""
        if scope["type"] == "lifespan":
            return
        status = self._refusal(scope)
        if status is not None:
            await _refuse(scope, send, status)
            return
        path = "/" + scope["path"][1:].partition("/")[2]

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(each for each in _HEADERS if each[0] not in own)]
            await send(message)

        await self._application({**scope, "path": path, "raw_path": path.encode()}, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> int | None:
        """The status for a request that is not allowed; None if it is."""
        if scope["type"] != "http" or not _is_ours(scope):
            return _FORBIDDEN
        raw = scope.get("raw_path")
        path = (scope["path"].encode("utf-8", "surrogateescape") if raw is None else raw).partition(b"?")[0]
        token, slash, _ = path[1:].partition(b"/")
        known = secrets.compare_digest(token, self._token)
        return None if known and slash and _PATH.fullmatch(path) else _NOT_FOUND


def _is_ours(scope: Scope) -> bool:
    """Whether a request names this machine as its host, and comes from a page of this server or from a person."""
    headers: dict[bytes, list[bytes]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.lower(), []).append(value)
    hosts, origins = headers.get(b"host", []), headers.get(b"origin", [])
    if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
        return False
    if scope["method"] not in {"GET", "HEAD"} and not origins:  # browsers always name the origin
        return False
    sites = headers.get(b"sec-fetch-site", [])
    return all(value == b"http://" + hosts[0] for value in origins) and all(value in _ASKED_BY for value in sites)


async def _refuse(scope: Scope, send: Send, status: int) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    text = b"forbidden" if status == _FORBIDDEN else b"not found"
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(text)).encode()), *_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})
