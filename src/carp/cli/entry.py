"""Entry and exit of the program: errors become one line, and every outcome has its exit code."""

import os
import sys
import warnings
from typing import Any, NoReturn, TextIO

# Each module registers its commands, in the order of the help
# isort: off
from carp.cli import train, data, search, evaluate, ablate, reports  # noqa: F401

# isort: on
from carp.cli.app import app
from carp.cli.interrupt import INTERRUPTED, CtrlC, interrupted_line
from carp.compute.parent import follow_launcher
from carp.console.printable import one_line
from carp.errors import CarpError, CarpWarning, Interrupted, received, requirement

_CPU_ALLOCATOR = ("can't allocate memory", "not enough memory", "Cannot allocate memory", "std::bad_alloc")
_OUT_OF_MEMORY = (
    "error: there is not enough memory. For training, lower micro_batch, global_size or num_prototypes; "
    "`carp train DATA --dry-run` shows what a run needs. Otherwise use smaller batches or images, or close programs."
)


def run(ctrl_c: CtrlC) -> None:
    """Run the command line; a user's mistake is reported as one line on standard error, with a non-zero exit code."""
    try:
        ctrl_c.raises = True
        follow_launcher()
        _prepare_output()
        code = app(prog_name="carp", standalone_mode=False)
        if code == INTERRUPTED:  # some versions of Typer return it after Ctrl-C without printing anything
            _interrupted(ctrl_c)
        sys.exit(code)
    except CarpError as error:
        if ctrl_c.raised:  # a library may turn the interrupt into an error of its own, such as that of a damaged file
            _interrupted(ctrl_c)
        kind = "" if isinstance(error, Interrupted) else "error: "
        _end(f"{kind}{error}", error.exit_code)
    except KeyboardInterrupt:
        _interrupted(ctrl_c)
    except MemoryError:
        _end(_OUT_OF_MEMORY, 1)
    except Exception as error:
        if ctrl_c.raised:
            _interrupted(ctrl_c)
        if _is_out_of_memory(error):
            _end(_OUT_OF_MEMORY, 1)
        # Some versions of Typer contain their own copy of click, so its exceptions are recognised by their attributes
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
    """Print only CARP's own warnings, one line each, and escape characters that cannot be encoded."""
    if not sys.warnoptions:  # -W or PYTHONWARNINGS asks for all warnings
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
    """Print a warning of CARP; those of other libraries concern code, not anything that the user can change."""
    if issubclass(category, CarpWarning):
        sys.stderr.write(f"carp: warning: {one_line(message)}\n")


def _interrupted(ctrl_c: CtrlC) -> NoReturn:
    first, code = _first_to_fail(INTERRUPTED)
    if first:
        ctrl_c.print_once(interrupted_line())
    sys.exit(code)


def _usage(error: Any) -> str:
    """Describe in one line what is wrong with the arguments of a command."""
    message = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "carp COMMAND"  # an option without its value has no context
    if hasattr(error.__cause__, "errors"):  # Typer checks values with pydantic
        wrong = error.__cause__.errors()[0]
        message = message.replace(wrong["msg"], f"{requirement(wrong['msg'])}, received {received(wrong['input'])}")
    stop = "" if message.endswith((".", "?")) else "."
    return f"{message[0].lower()}{message[1:]}{stop} `{path} --help` lists its arguments and options."


def _end(words: str, code: int) -> NoReturn:
    first, code = _first_to_fail(code)
    if first:
        sys.stderr.write(f"carp: {one_line(words)}\n")
    sys.exit(code)


def _first_to_fail(code: int) -> tuple[bool, int]:
    """Return whether this process prints its error, and the exit code: only the first of torchrun's to fail prints."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return True, code
    from carp.compute import distributed

    return distributed.first_to_fail(code)


def _is_out_of_memory(error: BaseException) -> bool:
    """Return whether the exception, or one that caused it, is a failed allocation. torch raises three kinds."""
    seen: BaseException | None = error
    for _ in range(10):  # a chain of causes may be circular
        if seen is None:
            return False
        kinds = {kind.__name__ for kind in type(seen).__mro__}
        if "MemoryError" in kinds or "OutOfMemoryError" in kinds:
            return True
        if isinstance(seen, RuntimeError) and any(words in str(seen) for words in _CPU_ALLOCATOR):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
