"""Kill a real process before its n-th call that changes a folder, whoever makes the call: Python, faiss, Arrow, Rust.

The process runs under a seccomp filter that stops it at the system calls in question, and under ptrace, so that its
parent counts them and ends it with SIGKILL. All threads count; the call at which it dies is not carried out.
"""

import ctypes
import os
import platform
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path

# Numbers of the calls that change files, on x86-64 and on ARM (64 bit).
_NUMBERS = {
    "x86_64": {
        "write": 1, "open": 2, "pwrite64": 18, "writev": 20, "sendfile": 40, "fsync": 74, "fdatasync": 75,
        "truncate": 76, "ftruncate": 77, "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85, "link": 86, "unlink": 87,
        "symlink": 88, "openat": 257, "mkdirat": 258, "unlinkat": 263, "renameat": 264, "linkat": 265, "symlinkat": 266,
        "fallocate": 285, "pwritev": 296, "renameat2": 316, "copy_file_range": 326,
    },
    "aarch64": {
        "write": 64, "pwrite64": 68, "writev": 66, "sendfile": 71, "fsync": 82, "fdatasync": 83, "truncate": 45,
        "ftruncate": 46, "openat": 56, "mkdirat": 34, "unlinkat": 35, "renameat": 38, "linkat": 37, "symlinkat": 36,
        "fallocate": 47, "pwritev": 70, "renameat2": 276, "copy_file_range": 285,
    },
}  # fmt: skip
CALLS = {number: name for name, number in _NUMBERS.get(platform.machine(), {}).items()}
_BY_DESCRIPTOR = {"write": 0, "pwrite64": 0, "writev": 0, "pwritev": 0, "fsync": 0, "fdatasync": 0, "ftruncate": 0}
_BY_DESCRIPTOR |= {"sendfile": 0, "fallocate": 0, "copy_file_range": 2}
_BY_PATH = {"open": 0, "truncate": 0, "rename": 0, "mkdir": 0, "rmdir": 0, "creat": 0, "link": 1, "unlink": 0}
_BY_PATH |= {"symlink": 1, "openat": 1, "mkdirat": 1, "unlinkat": 1, "renameat": 1, "linkat": 3, "symlinkat": 2}
_BY_PATH |= {"renameat2": 1}
_FLAGS = {"open": 1, "openat": 2}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

_TRACEME, _CONT, _SETOPTIONS, _SYSCALL_INFO = 0, 7, 0x4200, 0x420E
# Follow forks and clones, report what the filter stops, end the process when its tracer ends
_OPTIONS = 0x2 | 0x4 | 0x8 | 0x80 | 0x100000
_SECCOMP_EVENT = 7
_ALL_THREADS = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_LIBC.ptrace.restype = ctypes.c_long


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def _install_filter() -> None:
    """Let the tracer see the calls of `CALLS`; all others run at full speed."""
    load, equal, give = 0x20, 0x15, 0x06
    traced = sorted(CALLS)
    steps = [(load, 0, 0, 0)]
    steps += [(equal, len(traced) - i, 0, number) for i, number in enumerate(traced)]
    steps += [(give, 0, 0, 0x7FFF0000), (give, 0, 0, 0x7FF00000)]  # allow; trace
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    program = _Program(len(steps), code)
    assert _LIBC.prctl(38, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS"
    assert _LIBC.prctl(22, 2, ctypes.byref(program), 0, 0) == 0, "PR_SET_SECCOMP"


def _ptrace(request: int, pid: int, address: int = 0, data: int = 0) -> int:
    return int(_LIBC.ptrace(request, pid, address, data))


def _where(pid: int, name: str, args: tuple[int, ...]) -> str | None:
    """The path that a call changes; None when it changes nothing."""
    try:
        if name in _FLAGS and not args[_FLAGS[name]] & _WRITING:
            return None
        if name in _BY_DESCRIPTOR:
            return os.readlink(f"/proc/{pid}/fd/{args[_BY_DESCRIPTOR[name]] & 0xFFFFFFFF}")  # noqa: PTH115
        place = _BY_PATH[name]
        with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
            memory.seek(args[place])
            path = os.fsdecode(memory.read(4096).partition(b"\0")[0])
        base = ctypes.c_int(args[place - 1] & 0xFFFFFFFF).value if name.endswith("at") else -100
        folder = f"/proc/{pid}/cwd" if base == -100 else f"/proc/{pid}/fd/{base}"
        return str(Path(os.readlink(folder)) / path)  # noqa: PTH115
    except (OSError, ValueError):
        return None


def run_and_kill(work: Callable[[], None], under: str, at: int, log: str) -> None:
    """Run `work` in a child; kill it before its `at`-th call that changes something below `under`.

    Writes one line per such call to `log`, then ends as the child ended.
    """
    child = os.fork()
    if child == 0:
        _ptrace(_TRACEME, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        _install_filter()
        work()
        os._exit(0)
    os.waitpid(child, 0)
    if _ptrace(_SETOPTIONS, child, 0, _OPTIONS) != 0:
        os.kill(child, signal.SIGKILL)
        sys.exit(99)
    _ptrace(_CONT, child)
    calls: list[str] = []
    status = _watch(child, under, at, calls)
    Path(log).write_text("".join(f"{call}\n" for call in calls))
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


def _watch(child: int, under: str, at: int, calls: list[str]) -> int:
    information = ctypes.create_string_buffer(88)
    while True:
        pid, status = os.waitpid(-1, _ALL_THREADS)
        if not os.WIFSTOPPED(status):
            if pid == child:
                return status
            continue
        number, event = os.WSTOPSIG(status), status >> 16
        if event == _SECCOMP_EVENT:
            _ptrace(_SYSCALL_INFO, pid, 88, ctypes.addressof(information))
            values = struct.unpack_from("<7Q", information.raw, 24)
            name = CALLS[values[0]]
            where = _where(pid, name, values[1:])
            if where is not None and (where == under or where.startswith(f"{under}/")):
                calls.append(f"{name} {where.removeprefix(under)}")
                if len(calls) == at:
                    os.kill(child, signal.SIGKILL)
                    continue
        forwarded = 0 if event or number in {signal.SIGTRAP, signal.SIGSTOP} else number
        _ptrace(_CONT, pid, 0, forwarded)


def why_not() -> str | None:
    """Why processes cannot be killed at their calls here; None if they can."""
    if sys.platform != "linux" or not CALLS:
        return f"calls are counted on Linux on {' and '.join(_NUMBERS)} only"
    child = os.fork()
    if child == 0:
        try:
            run_and_kill(lambda: None, "/nowhere", 1, os.devnull)
        finally:
            os._exit(98)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return None if code == 0 else f"ptrace or seccomp is not permitted here (exit code {code})"
