"""Where the program begins and ends: mistakes become one line, and the exit code says what happened."""

import os
import sys
import warnings
from typing import Any, NoReturn, TextIO

# Each adds its commands, in the order of the help
# isort: off
from carp.cli import train, data, search, evaluate, reports, check  # noqa: F401

# isort: on
from carp.cli.app import app
from carp.cli.interrupt import INTERRUPTED, CtrlC, interrupted_line
from carp.cli.out_of_memory import is_out_of_memory
from carp.compute.parent import follow_launcher
from carp.console.printable import one_line
from carp.errors import CarpError, CarpWarning, Interrupted

_OUT_OF_MEMORY = (
    "error: there is not enough memory. `carp train DATA --dry-run` shows what a run needs; for training lower "
    "micro_batch, global_size or num_prototypes, otherwise close other programs or take smaller batches and images."
)


def run(ctrl_c: CtrlC) -> None:
    """Run the command line; a user's mistake is one line on standard error and a non-zero exit."""
    follow_launcher()
    _prepare_output()
    try:
        code = app(prog_name="carp", standalone_mode=False)
        if code == INTERRUPTED:  # some versions of Typer return it after Ctrl-C, and print nothing
            _interrupted(ctrl_c)
        sys.exit(code)
    except CarpError as error:
        kind = "" if isinstance(error, Interrupted) else "error: "
        _end(f"{kind}{error}", error.exit_code)
    except KeyboardInterrupt:
        _interrupted(ctrl_c)
    except MemoryError:
        _end(_OUT_OF_MEMORY, 1)
    except Exception as error:
        if is_out_of_memory(error):
            _end(_OUT_OF_MEMORY, 1)
        # Some versions of Typer bring their own copy of click, so its exceptions are known by what they have
        name = type(error).__name__
        if name == "Abort":
            _interrupted(ctrl_c)
        if not hasattr(error, "format_message"):
            if not _first_to_fail(1)[0]:
                sys.exit(1)
            raise
        if name == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]
            sys.exit(2)
        _end(f"error: {_usage(error)}", 2)


def _prepare_output() -> None:
    """Show CARP's own warnings as lines and no others, and let no character stop a line from being printed."""
    if not sys.warnoptions:  # whoever asked Python for warnings gets them
        warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a lone surrogate becomes \\udc80, which JSON reads back as it was
            stream.reconfigure(errors="backslashreplace")


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,  # noqa: ARG001 - as `warnings.showwarning` is called
    lineno: int,  # noqa: ARG001
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> None:
    """NumPy's, torch's and others' warnings are about code, not about what the user can change."""
    if issubclass(category, CarpWarning):
        sys.stderr.write(f"carp: warning: {one_line(message)}\n")


def _interrupted(ctrl_c: CtrlC) -> NoReturn:
    first, code = _first_to_fail(INTERRUPTED)
    if first:
        ctrl_c.speak(interrupted_line())
    sys.exit(code)


def _usage(error: Any) -> str:
    """What is wrong with the words of a command, in a line."""
    message = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "carp"
    stop = "" if message.endswith((".", "?")) else "."
    return f"{message[0].lower()}{message[1:]}{stop} `{path} --help` shows what it takes."


def _end(words: str, code: int) -> NoReturn:
    first, code = _first_to_fail(code)
    if first:
        sys.stderr.write(f"carp: {one_line(words)}\n")
    sys.exit(code)


def _first_to_fail(code: int) -> tuple[bool, int]:
    """Of the processes of torchrun only the first that fails speaks; all end with its exit code."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return True, code
    from carp.compute import distributed

    return distributed.first_to_fail(code)
