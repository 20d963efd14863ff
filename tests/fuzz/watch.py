"""An audit hook that reports what no input may cause: code that it carries, programs, sockets, writes elsewhere."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CANARY = "carp-fuzz-canary"
"""The name of the file that hostile inputs try to create, and so a word that nothing but their code would use."""

_PROGRAMS = {"os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "pty.spawn", "subprocess.Popen"}
_NETWORK = {
    "socket.connect",
    "socket.bind",
    "socket.sendto",
    "socket.sendmsg",
    "socket.getaddrinfo",
    "socket.gethostbyname",
    "socket.gethostbyaddr",
    "http.client.connect",
    "urllib.Request",
    "ftplib.connect",
    "smtplib.connect",
}
_CHANGES = {  # the arguments of each event that are paths, and of each the folder that it starts from
    "os.remove": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.mkdir": ((0, 2),),
    "os.rmdir": ((0, 1),),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.utime": ((0, 3),),
    "os.setxattr": ((0, None),),
    "shutil.rmtree": ((0, None),),
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_HARMLESS_CLASSES = ("numpy", "collections", "torch", "_codecs", "copyreg", "argparse", "pathlib")


def install(allowed: Path, report: Callable[[str], None]) -> None:
    """Watch this process for the rest of its life; writes below `allowed` are fine."""
    root = os.path.realpath(allowed)

    def outside(path: Any, folder: Any = None) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):  # a file descriptor: its opening was seen
            return False
        start = os.readlink(f"/proc/self/fd/{folder}") if isinstance(folder, int) and folder >= 0 else ""  # noqa: PTH115
        real = os.path.realpath(os.path.join(start, os.fsdecode(path)))  # noqa: PTH118 - an object per event is slow
        return not (real == root or real.startswith(root + os.sep) or real == os.devnull)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITING and outside(path):
                report(f"wrote {os.fsdecode(path)!r}")
        elif event in _CHANGES:
            for place, start in _CHANGES[event]:
                if outside(arguments[place], None if start is None else arguments[start]):
                    report(f"{event} of {os.fsdecode(arguments[place])!r}")
        elif event in _PROGRAMS:
            if not _is_git(event, arguments):
                report(f"started a program: {event} {arguments!r:.200}")
        elif event in _NETWORK:
            report(f"used the network: {event} {arguments[1:]!r:.200}")
        elif event == "pickle.find_class":
            module, name = arguments
            if module.split(".")[0] not in _HARMLESS_CLASSES:
                report(f"unpickled {module}.{name}")
        elif event in {"compile", "exec", "import"} and _mentions_canary(arguments):
            report(f"ran code of the input: {event} {arguments!r:.200}")

    sys.addaudithook(hook)


def _is_git(event: str, arguments: tuple[Any, ...]) -> bool:
    """`carp train` asks git for the state of the working folder."""
    return event == "subprocess.Popen" and arguments[0] == "git"


def _mentions_canary(arguments: tuple[Any, ...]) -> bool:
    for argument in arguments:
        if isinstance(argument, str) and CANARY in argument:
            return True
        if isinstance(argument, bytes) and CANARY.encode() in argument:
            return True
    return False
