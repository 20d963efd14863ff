"""`carp eval PROTOCOL`: how good is an encoder?"""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
import typer.core

from carp.cli import options
from carp.cli.app import app
from carp.cli.output import say
from carp.errors import ConfigError, MissingExtraError, nearest

if TYPE_CHECKING:
    from carp.evaluation.protocol import AnyProtocol
    from carp.evaluation.result import Result

_ALL = "all"


class ProtocolGroup(typer.core.TyperGroup):
    """One sub-command per protocol, built on demand, so that `carp --help` imports none of them."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - as click calls it
        """Names in the order of the help."""
        from carp.evaluation.protocols import all_protocols

        return [*(protocol.name for protocol in all_protocols()), _ALL]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Build the sub-command of one protocol, or of all that need only features."""
        from carp.evaluation.protocols import all_protocols

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
    help="Evaluate an encoder or stored features with one of the protocols below, or with all that need only features.",
)


def _command(name: str, protocols: "Sequence[type[AnyProtocol]]") -> Any:
    """A Typer command with the options that these protocols use and, for a single protocol, one option per setting."""
    from carp.cli.protocol_options import parameters_of

    def run(context: typer.Context, **given: Any) -> None:
        _evaluate(protocols, context, given)

    summary = protocols[0].summary
    if name == _ALL:
        names = [protocol.name for protocol in protocols]
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
        summary = f"Evaluate with {listed}, using default settings and stored features."
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [context, *parameters_of(protocols)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    single = typer.Typer(add_completion=False)
    single.command(name, help=summary, context_settings=options.WITH_SETTINGS)(run)
    return typer.main.get_command(single)


def _evaluate(protocols: "Sequence[type[AnyProtocol]]", context: typer.Context, given: dict[str, Any]) -> None:
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
    if model is None and out is None:
        out = Path()
    from carp.encoders.model_argument import is_weights
    from carp.evaluation.runner import RESULTS, run_protocols
    from carp.evaluation.workspace import output_folder

    if baselines and model is not None and is_weights(model):
        raise ConfigError(
            f"--baselines are raw pixels and the encoder that a run started from, received weights ({model}). "
            "Give a run folder, or leave out --baselines."
        )
    default = ("teacher",) if model is not None and is_weights(model) else first.branches
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
