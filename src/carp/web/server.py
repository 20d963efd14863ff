"""A server for one application, on this machine alone, in a thread of its own."""

import errno
import socket
import threading
import time
import webbrowser
from contextlib import suppress
from types import TracebackType
from typing import Self

import uvicorn

from carp.errors import ConfigError, ProcessError
from carp.web.answers import Answers
from carp.web.guard import new_token
from carp.web.routes import application

HOST = "127.0.0.1"
_START_SECONDS, _STOP_SECONDS = 20.0, 1.0


class Explorer:
    """A running explorer.

    Attributes:
        address: What to open in a browser. It contains a random token, without which nothing is served.
    """

    def __init__(self, answers: Answers, port: int | None) -> None:
        """Start the server; a port of None is any that is free."""
        token = new_token()
        bound = _bind(port)
        self.address = f"http://{HOST}:{bound.getsockname()[1]}/{token}/"
        self._answers = answers
        config = uvicorn.Config(
            application(answers, token),
            access_log=False,  # it would contain the token
            log_level="error",
            lifespan="off",
            ws="none",
            http="h11",
            loop="asyncio",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._ended = threading.Event()  # an interrupted `Thread.join` would take the thread for ended
        threading.Thread(target=self._serve, args=(bound,), name="explore", daemon=True).start()
        started = time.monotonic()
        while not self._server.started:
            if self._ended.is_set() or time.monotonic() - started > _START_SECONDS:
                raise ProcessError(f"the server on port {bound.getsockname()[1]} does not start. Try another --port.")
            time.sleep(0.01)

    def open_browser(self) -> None:
        """Show the page in the default browser, if there is one."""
        with suppress(webbrowser.Error):
            webbrowser.open(self.address)

    def wait(self) -> None:
        """Serve until `close`, or until Ctrl-C, after which the server has ended."""
        try:
            while not self._ended.wait(0.5):
                pass
        except KeyboardInterrupt:
            pass
        finally:
            self.close()

    def close(self) -> None:
        """End the server."""
        self._answers.background.stop()
        self._server.should_exit = True
        if not self._ended.wait(_STOP_SECONDS):
            self._server.force_exit = True

    def _serve(self, bound: socket.socket) -> None:
        try:
            self._server.run([bound])
        finally:
            bound.close()
            self._ended.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


def _bind(port: int | None) -> socket.socket:
    """A socket on this machine's own address, which no other machine reaches."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((HOST, port or 0))
    except (OSError, OverflowError) as error:
        bound.close()
        number = getattr(error, "errno", None)
        why = {errno.EADDRINUSE: "is in use", errno.EACCES: "is reserved for the system"}.get(
            number or 0, f"cannot be used: {getattr(error, 'strerror', None) or error}"
        )
        raise ConfigError(f"port {port} {why}. Give another --port, or leave it out for any free one.") from None
    return bound
