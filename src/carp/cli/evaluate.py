"""`carp eval PROTOCOL`: evaluate an encoder."""

import inspect
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from carp.cli import completion, options
from carp.cli.app import app
from carp.cli.output import say
from carp.errors import ConfigError, MissingExtraError, nearest

if TYPE_CHECKING:
    from carp.evaluation.protocol import AnyProtocol
    from carp.evaluation.result import Result

_ALL, _PAPER = "all", "paper"
_PAPER_EXTRACTION = ("layer", "size", "resize", "precision", "device")


class ProtocolGroup(typer.core.TyperGroup):
    """One sub-command per protocol, built on demand, so that `carp --help` imports none of them."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - as click calls it
        """Return the names in the order of the help."""
        from carp.evaluation.protocols import all_protocols

        return [*(protocol.name for protocol in all_protocols()), _ALL, _PAPER]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Build the sub-command of one protocol, of all that need only features, or of the paper's tables."""
        from carp.evaluation.protocols import all_protocols

        if cmd_name == _PAPER:
            return _paper_command()
        chosen = [p for p in all_protocols() if (p.part_of_all if cmd_name == _ALL else p.name == cmd_name)]
        return _command(cmd_name, chosen) if chosen else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the sub-command that was typed; suggest the nearest name if it does not exist."""
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-"):
            hint = nearest(args[0], names)
            raise ConfigError(f"there is no protocol '{args[0]}'.{hint} Protocols: {', '.join(names)}.")
        return super().resolve_command(ctx, args)


app.add_typer(
    typer.Typer(cls=ProtocolGroup, no_args_is_help=True),
    name="eval",
    help="Evaluate an encoder or stored features with one of the protocols below, with all protocols that need only "
    "features (all), or for the tables of the paper (paper).",
)


def _paper_command() -> Any:
    """Return the command `carp eval paper`, with some of the options of feature extraction."""
    from carp.cli.model_options import option_of
    from carp.features.feature_options import FeatureOptions

    own = list(inspect.signature(_evaluate_paper, eval_str=True).parameters.values())[:-1]
    extraction = [option_of(key, FeatureOptions.model_fields[key]) for key in _PAPER_EXTRACTION]
    return _typer_command(_PAPER, inspect.getdoc(_evaluate_paper) or "", partial(_evaluate_paper), [*own, *extraction])


def _evaluate_paper(
    *,
    model: Annotated[str, typer.Argument(help="Run folder, or weights: FILE or METHOD:FILE (`carp weights`).")],
    root: Annotated[Path, typer.Option(help="Folder of datasets (`carp datasets --root FOLDER` lists them).")],
    only: Annotated[
        list[str] | None, typer.Option(help="Only this table, such as knn or kmeans (docs/tables.md); can be repeated.")
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            help="Settings of the protocols: paper, or authors for those of the authors' code.",
            autocompletion=completion.one_of("paper", "authors"),
        ),
    ] = "paper",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and the estimated times; evaluate nothing.")
    ] = False,
    branch: Annotated[
        str,
        typer.Option(
            help="Encoder of a run: teacher, student, untrained or raw pixels.",
            autocompletion=completion.one_of("teacher", "student", "untrained", "raw pixels"),
        ),
    ] = "teacher",
    epoch: options.Epoch = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for results and features. Default: the run folder; for weights, a folder named after them."
        ),
    ] = None,
    **extraction: Any,
) -> None:
    """Reproduce every table of the paper whose datasets are in a folder, next to the published rows.

    The same command resumes: finished results are not computed again.
    """
    options.check_model(model)
    from carp.commands.evaluate_paper import evaluate_paper
    from carp.evaluation.runner import RESULTS
    from carp.evaluation.workspace import output_folder
    from carp.report.tables.render import to_screen

    done = evaluate_paper(
        model,
        root,
        only=only or (),
        preset=preset,
        dry_run=dry_run,
        branch=branch,
        epoch=epoch,
        out=out,
        **extraction,
        quiet=False,
    )
    if not options.is_first_process():
        return
    for line in done.plan if dry_run else ():
        say(line)
    for table in done.tables.values():
        to_screen(table)
    for note in done.all_notes():
        say(f"note: {note}", err=True)
    if not dry_run:
        say(f"results: {output_folder(model, out) / RESULTS}")
    for failure in done.failed:
        say(f"carp: error: {failure}", err=True)
    if done.failed:
        raise typer.Exit(1)


def _command(name: str, protocols: "Sequence[type[AnyProtocol]]") -> Any:
    """Return a command with the options of these protocols and, for a single one, one option per setting."""
    from carp.cli.protocol_options import parameters_of

    summary = protocols[0].summary
    if name == _ALL:
        names = [protocol.name for protocol in protocols]
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
        summary = f"Evaluate with {listed}, using default settings and stored features."
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [context, *parameters_of(protocols)]
    return _typer_command(name, summary, partial(_evaluate, protocols), parameters, **options.WITH_SETTINGS)


def _typer_command(
    name: str, summary: str, run: "partial[None]", parameters: Sequence[inspect.Parameter], **settings: Any
) -> Any:
    """Return a command that calls `run` with these parameters; they are attributes of the partial, not its function."""
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    single = typer.Typer(add_completion=False)
    single.command(name, help=summary, context_settings=settings)(run)
    return typer.main.get_command(single)


def _evaluate(protocols: "Sequence[type[AnyProtocol]]", context: typer.Context, **given: Any) -> None:
    """Run protocols with the options of the command and print the results; several protocols use their defaults."""
    from carp.cli.protocol_options import parse_settings
    from carp.evaluation.protocol import OPTIONS
    from carp.features.feature_options import FeatureOptions

    first, several = protocols[0], len(protocols) > 1
    model, settings = parse_settings(context, given, {} if several else first.settings_type.model_fields)
    if several and settings:
        raise ConfigError(f"'{_ALL}' accepts no settings, received {min(settings)}: use it with a single protocol.")
    chosen = [p(p.settings_type(**(p.settings_for_all if several else settings))) for p in protocols]
    data, baselines, out = given["data"], given.get("baselines"), given["out"]
    test = given["test"] if first.needs == "features" else None
    if not data:
        raise ConfigError("--data is missing: give labelled images, e.g. --data LABELLED_FOLDER.")
    extraction = FeatureOptions(**{key: given[key] for key in OPTIONS[first.needs]})
    options.check_model(model)
    options.check_data(data, test)
    from carp.encoders.model_argument import is_weights
    from carp.evaluation.runner import RESULTS, run_protocols
    from carp.evaluation.workspace import model_for, output_folder

    if first.needs != "boxes":
        found = model_for(model, data, lambda line: say(line, err=True) if options.is_first_process() else None)
        model = None if found is None else str(found)
    if model is None and out is None:
        out = Path()
    weights = model is not None and is_weights(model)
    if baselines and weights:
        raise ConfigError(
            f"--baselines needs a run, because it evaluates the encoder that the run started from, received weights "
            f"({model}). Give a run folder, or leave out --baselines."
        )
    default = ("teacher",) if weights else first.branches
    results, notes = run_protocols(
        chosen,
        model,
        data,
        test=test,
        branches=[*(given["branch"] or default), *(["raw pixels", "untrained"] if baselines else [])],
        epochs=options.parse_epochs(model, given["epoch"]),
        options=extraction,
        out=out,
        predictions=given.get("predictions"),
        quiet=False,
        skip=several,
    )
    if options.is_first_process():
        folder = output_folder(model, out) / RESULTS
        figure = _print(results, folder)
        for note in notes:
            say(f"note: {note}", err=True)
        say(f"results: {folder}")
        if figure is not None:
            say(f"figure: {figure}")
        if predictions := given.get("predictions"):
            say(f"predictions: {predictions}")


def _print(results: "Sequence[Result]", folder: Path) -> Path | None:
    """Print the results; those of several epochs by epoch, and draw them if matplotlib is installed."""
    from carp.report.figures.epoch_curve import epoch_curves, epochs_file, print_epoch_table, write_epoch_curves
    from carp.report.tables.summary import print_results

    if len({result.at_epoch for result in results if result.at_epoch}) < 2:
        print_results(results)
        return None
    curves = epoch_curves(results)
    print_epoch_table(curves)
    path = folder / epochs_file(results)
    try:
        write_epoch_curves(curves, path)
    except MissingExtraError as error:
        say(f"note: no figure was drawn: {error}", err=True)
        return None
    return path
