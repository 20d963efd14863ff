"""Pickles that would run code: each tries to create the canary in the working folder of the command."""

import pickle
import struct
from collections.abc import Iterator

from tests.fuzz.watch import CANARY

_SHELL = f"touch {CANARY}"
_PYTHON = f"open('{CANARY}', 'w').close()"
_CALLS = (
    ("os", "system", _SHELL), ("posix", "system", _SHELL), ("nt", "system", _SHELL),
    ("subprocess", "getoutput", _SHELL), ("subprocess", "check_call", [_SHELL]), ("builtins", "exec", _PYTHON),
    ("builtins", "eval", _PYTHON), ("__builtin__", "eval", _PYTHON), ("os", "mkdir", CANARY), ("os", "popen", _SHELL),
    ("commands", "getoutput", _SHELL), ("pathlib", "Path", CANARY), ("builtins", "open", CANARY),
    ("runpy", "run_path", CANARY), ("shutil", "rmtree", "."), ("torch", "load", CANARY),
    ("torch.serialization", "load", CANARY), ("numpy", "load", CANARY), ("timeit", "timeit", _PYTHON),
    ("webbrowser", "open", "http://127.0.0.1:9"), ("socket", "create_connection", ("127.0.0.1", 9)),
    ("builtins", "__import__", CANARY), ("importlib", "import_module", CANARY), ("pickle", "loads", b"cos\nsystem\n"),
    ("torch.hub", "load", CANARY), ("logging.config", "listen", 9), ("code", "interact", _PYTHON),
    ("operator", "attrgetter", "__class__"), ("torch._utils", "_rebuild_tensor_v2", None), ("carp.cli", "main", None),
    ("numpy.testing._private.utils", "runstring", _PYTHON),
)  # fmt: skip


def pickles() -> Iterator[bytes]:
    """The same calls, written as each protocol writes them and as no pickler would."""
    for module, name, argument in _CALLS:
        packed = pickle.dumps((argument,), protocol=2)[2:-1]  # without its head and its end
        yield b"c" + f"{module}\n{name}\n".encode() + packed + b"R."
        yield b"\x80\x02c" + f"{module}\n{name}\n".encode() + packed + b"R."
        names = b"".join(b"\x8c" + struct.pack("B", len(text)) + text.encode() for text in (module, name))
        yield b"\x80\x04" + names + b"\x93" + packed + b"R."
        yield b"\x80\x02}X\x01\0\0\0ac" + f"{module}\n{name}\n".encode() + packed + b"Rs."
        yield b"(" + packed + b"i" + f"{module}\n{name}\n".encode() + b"."
        yield b"\x80\x02c" + f"{module}\n{name}\n".encode() + b")\x81" + packed + b"b."  # NEWOBJ, BUILD
        # the names come from the memo, so that they do not stand before the instruction that uses them
        yield (
            b"\x80\x04"
            + b"".join(b"\x8c" + struct.pack("B", len(text)) + text.encode() + b"\x94" for text in (module, name))
            + b"00h\x00h\x01\x93"
            + packed
            + b"R."
        )


def bombs() -> Iterator[bytes]:
    """Short pickles that claim or build much: lengths, memo entries, depth, copies of copies."""
    yield b"\x80\x02B\xff\xff\xff\x7f."
    yield b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"."
    yield b"\x80\x04\x8d" + struct.pack("<Q", 2**40) + b"."
    yield b"\x80\x05\x96" + struct.pack("<Q", 2**33) + b"."
    yield b"\x80\x02r\xff\xff\xff\xff."
    yield b"\x80\x02]r\xff\xff\xff\x7f."
    yield b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."
    yield b"\x80\x02" + b"(" * 200_000 + b"t" * 200_000 + b"."
    yield b"\x80\x02)" + b"\x85" * 100_000 + b"."
    yield b"\x80\x02\x8b" + struct.pack("<i", -5) + b"."
    yield b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b"1."
    yield (
        b"\x80\x02]q\x00"
        + b"".join(b"(" + b"h" + bytes([i]) + b"h" + bytes([i]) + b"tq" + bytes([i + 1]) for i in range(40))
        + b"."
    )
    yield b"\x80\x02I" + b"9" * 100_000 + b"\n."
    yield b"\x80\x02L" + b"9" * 100_000 + b"L\n."
    yield b"\x80\x02F1e999\n."
    yield b"\x80\x02" + b"N" * 1_000_000 + b"."
    yield b"\x80\x02" + b"".join(b"]r" + struct.pack("<I", i) for i in range(20_000)) + b"."
    yield b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nq\x00cnumpy\nndarray\nJ\xff\xff\xff\x7f\x85R."
    yield b"\x80\x02X\xff\xff\xff\xffabc."
    yield b"."
    yield b"\x80\x02."
    yield b"\x80\xff."
    yield b"\x80"
