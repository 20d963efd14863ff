"""How good is an encoder: `carp eval PROTOCOL`."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from carp.cli import completion, options
from carp.cli.app import app
from carp.cli.output import say
from carp.errors import ConfigError, nearest

if TYPE_CHECKING:
    from carp.evaluation.protocol import AnyProtocol

_ALL = "all"
_WITHOUT_TEST = {
    "leave one out": "Default: leave out each image of --data in turn.",
    "the same images": "Default: the images of --data.",
    "hold out": "Default: hold out a fifth of each class of --data.",
}


class ProtocolGroup(typer.core.TyperGroup):
    """One sub-command per protocol, built on demand, so that `carp --help` imports none of them."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - as click calls it
        """Names in the order of the help."""
        from carp.evaluation.protocols import all_protocols

        return [*(protocol.name for protocol in all_protocols()), _ALL]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The sub-command of a protocol, or of all."""
        if cmd_name == _ALL:
            return _command_for_all()
        return _command_for(cmd_name) if cmd_name in self.list_commands(ctx) else None

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
    help="Evaluate an encoder, or stored features, by one of the protocols below, or by all that need only features.",
)

_DATA = {
    "features": "Labelled images to train on (docs/data.md; dataset:NAME), or the folder of their features.",
    "images": "Images to search, or a folder of altered copies (docs/protocols.md).",
    "boxes": "Folder that contains VOCdevkit.",
}
_Baselines = Annotated[bool, typer.Option("--baselines", help="Also evaluate raw pixels and the untrained encoder.")]
_Weights = Annotated[str | None, typer.Option(help="FILE or METHOD:FILE: another way to give the model.")]
_Out = Annotated[
    Path | None,
    typer.Option(
        help="Folder for results and features. Default: the run folder; for weights, a folder of their name here."
    ),
]
_Predictions = Annotated[
    Path | None, typer.Option(help="A .csv or .parquet file for one row per test image; also predictions=FILE.")
]


def _command_for(name: str) -> Any:
    """The sub-command of one protocol, with the options that it uses and one option per setting."""
    from carp.cli.setting_options import given_settings, setting_option
    from carp.evaluation.protocols import find_protocol

    protocol = find_protocol(name)
    fields = protocol.settings_type.model_fields
    parameters = _common_parameters(protocol, completion.settings_of(fields))

    def run(context: typer.Context, **given: Any) -> None:
        model, words = _model_and_words(given)
        overrides = options.parse_protocol(context, words, fields)
        settings = protocol.settings_type(**(given_settings(fields, given) | overrides))
        _evaluate([protocol(settings)], model, given, protocol.branches)

    return _built(name, protocol.summary, run, [*parameters, *(setting_option(*field) for field in fields.items())])


def _command_for_all() -> Any:
    """`carp eval all`: every protocol that only needs features, with its defaults."""
    from carp.evaluation.protocols import all_protocols

    protocols = [protocol for protocol in all_protocols() if protocol.part_of_all]
    names = ", ".join(protocol.name for protocol in protocols)

    def run(context: typer.Context, **given: Any) -> None:
        model, words = _model_and_words(given)
        if overrides := options.parse_protocol(context, words, {}):
            raise ConfigError(f"'{_ALL}' takes no settings, received {min(overrides)}: give them to one protocol.")
        chosen = [protocol(protocol.settings_type(**protocol.settings_for_all)) for protocol in protocols]
        _evaluate(chosen, model, given, protocols[0].branches, skip=True)

    summary = f"Evaluate by {names}, with their default settings; linear classifiers on stored features."
    return _built(_ALL, summary, run, _common_parameters(None, None))


def _common_parameters(protocol: "type[AnyProtocol] | None", suggest: Any) -> list[inspect.Parameter]:
    """What a sub-command takes beside settings; None is `all`."""
    from carp.cli.model_options import option_of
    from carp.evaluation.protocol import OPTIONS
    from carp.features.feature_options import FeatureOptions

    words = Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Settings, e.g. seed=1.", autocompletion=suggest, hidden=suggest is None
        ),
    ]
    needs = protocol.needs if protocol else "features"
    stored = " Not needed if --data and --test are folders that `carp embed` wrote." * (needs == "features")
    model = Annotated[
        str | None, typer.Argument(help=f"Run folder, or weights: FILE or METHOD:FILE (`carp weights`).{stored}")
    ]
    data = Annotated[str, typer.Option("--data", "--database", help=_DATA[needs])]
    found: dict[str, tuple[Any, Any]] = {"model": (model, None), "words": (words, None), "data": (data, "")}
    if needs == "features":
        without = _WITHOUT_TEST[protocol.without_test] if protocol else "Default: as each protocol does without."
        found["test"] = Annotated[str | None, typer.Option(help=f"Labelled images to test on. {without}")], None
    found["branch"] = options.Branches, None
    if needs != "boxes":
        found["baselines"] = _Baselines, False
    found |= {"weights": (_Weights, None), "out": (_Out, None)}
    if protocol and protocol.predicts:
        found["predictions"] = _Predictions, None
    kind = inspect.Parameter.KEYWORD_ONLY
    own = [inspect.Parameter(key, kind, annotation=note, default=value) for key, (note, value) in found.items()]
    fields = FeatureOptions.model_fields
    return [*own, *(option_of(key, fields[key]) for key in OPTIONS[needs])]


def _built(name: str, summary: str, run: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> Any:
    """A command of Typer from its parameters."""
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    run.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (context, *parameters)}
    single = typer.Typer(add_completion=False)
    single.command(name, help=summary, context_settings=options.WITH_SETTINGS)(run)
    return typer.main.get_command(single)


def _model_and_words(given: dict[str, Any]) -> tuple[str | None, list[str]]:
    """The model, and key=value words; without a model the first word is in its place."""
    model, words = given["model"], list(given["words"] or ())
    if model is not None and ("=" in model or model.startswith("-")):
        model, words = None, [model, *words]
    if "predictions" in given:
        for word in [word for word in words if word.startswith("predictions=")]:
            given["predictions"] = Path(word.partition("=")[2])
            words.remove(word)
    return given["weights"] or model, words


def _evaluate(
    protocols: "Sequence[AnyProtocol]",
    model: str | None,
    given: dict[str, Any],
    branches: Sequence[str],
    *,
    skip: bool = False,
) -> None:
    """Run the protocols with the options of the command, and print what they found."""
    from carp.evaluation.protocol import OPTIONS
    from carp.features.feature_options import FeatureOptions

    data, baselines, out = given["data"], given.get("baselines"), given["out"]
    test = given["test"] if protocols[0].needs == "features" else None
    if not data:
        raise ConfigError("--data is missing: give labelled images, e.g. --data LABELLED_FOLDER.")
    extraction = FeatureOptions(**{key: given[key] for key in OPTIONS[protocols[0].needs]})
    options.check_model(model)
    options.check_data(data, test)
    if model is None and out is None:
        out = Path()
    from carp.encoders.model_argument import is_weights
    from carp.evaluation.runner import RESULTS, run_protocols
    from carp.evaluation.workspace import output_folder
    from carp.report.tables.summary import print_results

    if baselines and model is not None and is_weights(model):
        raise ConfigError("--baselines are those of a run: raw pixels and the encoder that it started from.")
    results, notes = run_protocols(
        protocols,
        model,
        data,
        test=test,
        branches=[*(given["branch"] or branches), *(["raw pixels", "untrained"] if baselines else [])],
        options=extraction,
        out=out,
        predictions=given.get("predictions"),
        quiet=False,
        skip=skip,
    )
    if options.is_first_process():
        print_results(results)
        for note in notes:
            say(f"note: {note}", err=True)
        say(f"results: {output_folder(model, out) / RESULTS}")
        if predictions := given.get("predictions"):
            say(f"predictions: {predictions}")
