"""The command line. Torch is imported by the commands that need it, so that `--help` is fast."""

from carp.cli.interrupt import CtrlC, end_process, interrupted_line


def main() -> None:
    """Run the command line; it ends with `SystemExit`."""
    with CtrlC(interrupted_line) as ctrl_c:
        from carp.cli.entry import run  # imported after the Ctrl-C handler is installed, because it takes a moment

        run(ctrl_c)


def console() -> None:
    """Run the command line as a process of its own."""
    try:
        main()
    except SystemExit as ended:
        end_process(ended.code if isinstance(ended.code, int) else 0)


__all__ = ["console", "main"]
