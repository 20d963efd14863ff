"""Where the program begins and ends: mistakes become one line, and the exit code says what happened."""

import os
import sys
from typing import Any, NoReturn

# Each adds its commands, in the order of the help
# isort: off
from carp.cli import training, looking, using, evaluating  # noqa: F401

# isort: on
from carp.cli.app import app
from carp.errors import CarpError, Interrupted

_INTERRUPTED = 130
# These keep what is finished: steps of a run, features, copies of images
_CONTINUING = ("train", "demo", "embed", "eval", "duplicates", "data attack")


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error and a non-zero exit."""
    try:
        code = app(prog_name="carp", standalone_mode=False)
        if code == _INTERRUPTED:  # some versions of Typer make it of Ctrl-C, and say nothing
            _end(_interrupted(), _INTERRUPTED)
        sys.exit(code)
    except CarpError as error:
        kind = "" if isinstance(error, Interrupted) else "error: "
        _end(f"{kind}{error}", error.exit_code)
    except KeyboardInterrupt:
        _end(_interrupted(), _INTERRUPTED)
    except Exception as error:
        # Some versions of Typer bring their own copy of click, so its exceptions are known by what they have
        name = type(error).__name__
        if name == "Abort":
            _end(_interrupted(), _INTERRUPTED)
        if not hasattr(error, "format_message"):
            if not _first_to_tell(1)[0]:
                sys.exit(1)
            raise
        if name == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]
            sys.exit(2)
        _end(f"error: {_usage(error)}", 2)


def _interrupted() -> str:
    """What happened, and whether anything is lost by it."""
    command = " ".join(sys.argv[1:3])
    continues = any(f"{command} ".startswith(f"{name} ") for name in _CONTINUING) and "--dry-run" not in sys.argv
    return "interrupted." + (" The same command continues: what is finished is kept." if continues else "")


def _usage(error: Any) -> str:
    """What is wrong with the words of a command, in a line."""
    message = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "carp"
    stop = "" if message.endswith((".", "?")) else "."
    return f"{message[0].lower()}{message[1:]}{stop} `{path} --help` shows what it takes."


def _end(words: str, code: int) -> NoReturn:
    first, code = _first_to_tell(code)
    if first:
        sys.stderr.write(f"carp: {words}\n")
    sys.exit(code)


def _first_to_tell(code: int) -> tuple[bool, int]:
    """Of the processes of torchrun only the first that fails speaks; all end with its exit code."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return True, code
    from carp import distributed

    return distributed.first_to_tell(code)
