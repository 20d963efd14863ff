"""The addresses of the application: every one is made of words and whole numbers, so none can name a file."""

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from carp.console.printable import one_line
from carp.console.quantities import in_bytes
from carp.errors import CarpError, DataError
from carp.web.answers import Answers
from carp.web.background import Task
from carp.web.chosen_images import SUFFIXES
from carp.web.groups import colour_values
from carp.web.guard import Guard
from carp.web.page import explorer_page
from carp.web.picture_cache import SIDES

MOST_BYTES = 64 * 2**20  # of an image that is dropped onto the page
_LONGEST_LABEL = 200
_BINARY = "application/octet-stream"
_KEPT = {"cache-control": "private, max-age=3600"}  # the token makes addresses of another session different
_NEW = {"cache-control": "no-store"}
Handler = Callable[[Request], Response]


def application(answers: Answers, token: str) -> Guard:
    """The application, behind its guard."""
    page = explorer_page(answers.about())
    api = _Api(answers)
    routes = [
        Route("/", lambda _: Response(page.text, media_type="text/html", headers={**_NEW, **page.headers})),
        *(Route(path, _sync(handler)) for path, handler in api.reads().items()),
        Route("/search", api.search, methods=["POST"]),
        Route("/selection/{kind:str}", api.selection, methods=["POST"]),
        Route("/save/{kind:str}", api.save, methods=["POST"]),
    ]
    app = Starlette(routes=routes)
    app.router.redirect_slashes = False
    return Guard(app, token)


def _sync(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Run a handler in a thread; what a person can do something about is an answer, not a failure."""

    @wraps(handler)
    async def run(request: Request) -> Response:
        return await _answered(handler, request)

    return run


async def _answered(handler: Callable[..., Response], *arguments: Any) -> Response:
    try:
        return await run_in_threadpool(handler, *arguments)
    except CarpError as error:
        return _json({"error": str(error)})


class _Api:
    """Reads numbers out of addresses and bodies, and asks for answers."""

    def __init__(self, answers: Answers) -> None:
        self._answers, self._groups = answers, answers.groups

    def reads(self) -> Mapping[str, Handler]:
        """Everything that only reads, by its path."""
        clusters, prototypes = "/clusters/{space:int}/{k:int}", "/prototypes/{space:int}"
        return {
            "/picture/{row:int}/{side:int}": self._picture,
            "/image/{row:int}": lambda r: _json(self._answers.images.described(self._row(r))),
            "/neighbours/{row:int}": lambda r: _json(self._answers.neighbours(self._row(r))),
            "/exactness/{space:int}": lambda r: self._worked(self._answers.exactness(self._space(r)), lambda v: v),
            "/map/{space:int}": lambda r: _json(self._answers.maps.state(self._space(r))),
            "/points/{space:int}/{version:int}": self._points,
            "/labels": lambda _: Response(self._answers.labels(), media_type=_BINARY, headers=_KEPT),
            clusters: lambda r: self._worked(self._clusters(r), lambda v: self._groups.cluster_cards(*v)),
            f"{clusters}/{{what:str}}": lambda r: self._colours(self._clusters(r), r, lambda v: v[0]),
            f"{clusters}/one/{{number:int}}/{{start:int}}": lambda r: self._worked(
                self._clusters(r), lambda v: self._groups.cluster(v[0], *_numbers(r, "number", "start"))
            ),
            prototypes: lambda r: self._worked(self._prototypes(r), self._groups.prototype_cards),
            f"{prototypes}/{{what:str}}": lambda r: self._colours(self._prototypes(r), r, lambda v: v),
            f"{prototypes}/one/{{number:int}}/{{start:int}}": lambda r: self._worked(
                self._prototypes(r), lambda v: self._groups.prototype(v, *_numbers(r, "number", "start"))
            ),
            "/copies/{space:int}": lambda r: self._worked(self._groups.copies(self._space(r)), lambda v: v),
            "/comparison": lambda _: self._worked(self._groups.comparison(), self._groups.changes),
            "/comparison/{what:str}": lambda r: self._colours(self._groups.comparison(), r, lambda v: v),
        }

    async def search(self, request: Request) -> Response:
        """Neighbours of an image in the body."""
        try:
            stored = await _body(request, MOST_BYTES)
        except CarpError as error:
            return _json({"error": str(error)})
        return await _answered(lambda: _json(self._answers.search(stored, "that was dropped")))

    async def selection(self, request: Request) -> Response:
        """The images whose numbers are in the body, as text."""
        return await self._chosen(
            request, lambda *given: Response(self._answers.selection(*given), media_type=_BINARY, headers=_NEW)
        )

    async def save(self, request: Request) -> Response:
        """The same as a file or folder of links."""
        return await self._chosen(request, lambda *given: _json(self._answers.saved(*given)))

    async def _chosen(self, request: Request, answer: Callable[..., Response]) -> Response:
        kind = request.path_params["kind"]
        if kind not in SUFFIXES:
            raise HTTPException(404)
        try:
            rows = self._rows(await _body(request, 4 * len(self._answers.images)))
        except CarpError as error:
            return _json({"error": str(error)})
        label = unquote(request.headers.get("x-label", ""))[:_LONGEST_LABEL].strip()
        return await _answered(lambda: answer(rows, kind, label))

    def _rows(self, body: bytes) -> NDArray[np.int64]:
        if len(body) % 4:
            raise HTTPException(400)
        rows = np.frombuffer(body, dtype="<u4").astype(np.int64)
        if len(rows) and rows.max() >= len(self._answers.images):
            raise HTTPException(404)
        return rows

    def _picture(self, request: Request) -> Response:
        row, (side,) = self._row(request), _numbers(request, "side")
        if side not in SIDES:
            raise HTTPException(404)
        made = self._answers.pictures.picture(row, side)
        if made is None:
            return Response(_UNREADABLE, media_type="image/svg+xml", headers=_NEW)
        return Response(made, media_type="image/jpeg", headers=_KEPT)

    def _points(self, request: Request) -> Response:
        points = self._answers.maps.points(self._space(request), _numbers(request, "version")[0])
        return Response(points, media_type=_BINARY, headers=_NEW)

    def _clusters(self, request: Request) -> Task:
        (k,) = _numbers(request, "k")
        allowed = self._answers.about()["clusters"]
        if not allowed["least"] <= k <= allowed["most"]:
            raise HTTPException(404)
        return self._groups.clusters(self._space(request), k)

    def _prototypes(self, request: Request) -> Task:
        return self._groups.prototypes(self._space(request))

    def _worked(self, task: Task, answer: Callable[[Any], Any]) -> Response:
        """The answer from work that is done, or how far it is."""
        if task.error is not None:
            return _json({"error": task.error})
        return _json(answer(task.value) if task.done else {"working": task.progress})

    def _colours(self, task: Task, request: Request, value: Callable[[Any], Any]) -> Response:
        what = request.path_params["what"]
        if what not in {"own", "certainty", "kept"}:
            raise HTTPException(404)
        if not task.done or task.error is not None:
            return self._worked(task, lambda _: None)
        packed = colour_values(value(task.value), what, len(self._answers.images))
        return Response(packed, media_type=_BINARY, headers=_NEW)

    def _row(self, request: Request) -> int:
        (row,) = _numbers(request, "row")
        if row >= len(self._answers.images):
            raise HTTPException(404)
        return row

    def _space(self, request: Request) -> int:
        (number,) = _numbers(request, "space")
        if number >= len(self._answers.spaces):
            raise HTTPException(404)
        return number


def _numbers(request: Request, *names: str) -> tuple[int, ...]:
    return tuple(int(request.path_params[name]) for name in names)


async def _body(request: Request, limit: int) -> bytes:
    """The body of a request, which must not be longer than so many bytes."""
    parts, size = list[bytes](), 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise DataError(f"the file has more than {in_bytes(limit)}. Drop a smaller one.")
        parts.append(part)
    return b"".join(parts)


def _json(value: Any) -> Response:
    if isinstance(value, dict) and "error" in value:  # one line, whatever is in the names of files
        value = {"error": one_line(value["error"])}
    return JSONResponse(value, headers=_NEW)


_UNREADABLE = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64" width="64" height="64">'
    '<path d="M22 22l20 20M42 22L22 42" stroke="#888" stroke-width="3"/></svg>'
)
