"""Put an encoder to use: `carp embed`, `index`, `search`, `duplicates`, `cluster`, `label`, `export` and `push`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from carp.cli import completion, options
from carp.cli.app import app
from carp.cli.model_options import with_model_options
from carp.cli.output import say
from carp.features.feature_options import FeatureOptions

_Model = Annotated[
    str | None,
    typer.Option(
        help="Run folder, or weights: FILE, METHOD:FILE or a name (docs/weights.md). Default: the stored "
        "--features, or lite0."
    ),
]
_Features = Annotated[
    Path | None,
    typer.Option(help="Folder with the features of these images. Default: the sub-folder features of --out."),
]


@app.command("embed")
@with_model_options
def _embed(
    data: Annotated[str, typer.Option(help="Folder of images or any other source (docs/data.md), labelled or not.")],
    out: Annotated[Path, typer.Option(help="Folder for the features; rerun the same command to resume.")],
    features: FeatureOptions,
    model: Annotated[
        str | None,
        typer.Argument(
            help="Run folder, RUN@25, or weights: FILE, METHOD:FILE or a name (docs/weights.md). Default: lite0."
        ),
    ] = None,
    branch: Annotated[str, typer.Option(help="Encoder of a run: teacher or student.")] = "teacher",
    epoch: options.Epoch = None,
    format: Annotated[
        str,
        typer.Option(
            "--format",
            help="npy, parquet or csv; the last two write an additional file to the folder.",
            autocompletion=completion.one_of("npy", "parquet", "csv"),
        ),
    ] = "npy",
) -> None:
    """Extract the features of images and store them with labels, paths and their origin."""
    options.check_model(model)
    options.check_data(data)
    from carp.commands.embed import embed

    store = embed(
        model,
        data,
        out,
        branch=branch,
        epoch=epoch,
        format=format,  # type: ignore[arg-type]  # checked there
        quiet=False,
        **features.model_dump(),
    )
    if options.is_first_process():
        say(f"features: {out}   {len(store.features):,} images × {store.features.shape[1]}")


@app.command("index")
def _index(
    features: Annotated[Path, typer.Argument(help="Folder of features written by `carp embed`.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the index. Default: the sub-folder index of the features.")
    ] = None,
    kind: Annotated[str, typer.Option(help="exact, ivf or hnsw; auto chooses based on the number of images.")] = "auto",
) -> None:
    """Build an index of stored features for `carp search`; if it is approximate, measure its recall."""
    from carp.commands.index import index

    made = index(features, out=out, kind=kind, quiet=False)
    settings = "".join(f", {name} {value}" for name, value in made.settings.items())
    recall = "" if made.kind == "exact" else f"; finds {made.recall:.1%} of the ten nearest neighbours"
    say(f"index: {made.folder}   {made.images:,} images, {made.kind}{settings}{recall}")


@app.command("search")
def _search(
    context: typer.Context,
    index: Annotated[Path, typer.Argument(help="Folder written by `carp index`, or the folder of its features.")],
    images: Annotated[list[Path], typer.Argument(help="Query images, or folders of images.")],
    k: Annotated[int | None, typer.Option(min=1, help="Number of images to find for each query. Default: 10.")] = None,
    model: Annotated[
        str | None, typer.Option(help="The run or weights that extracted the features, if they have been moved.")
    ] = None,
    epoch: options.Epoch = None,
    sheet: Annotated[Path | None, typer.Option(help="Write a contact sheet to this .png or .html file.")] = None,
    data: Annotated[
        str | None, typer.Option(help="The indexed images, if they have been moved; used for the sheet.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    device: options.Device = "auto",
) -> None:
    """Find the images that are most similar to query images."""
    options.refuse_settings(context, images)
    from carp.commands.search import search
    from carp.report.pages.search_page import print_found

    found = search(index, images, k=k, model=model, epoch=epoch, sheet=sheet, data=data, device=device)
    if as_json:
        say(json.dumps({"queries": [one.as_dict() for one in found]}))
        return
    print_found(found)
    if sheet is not None:
        say(f"sheet: {sheet}")


@app.command("duplicates")
@with_model_options
def _duplicates(
    data: Annotated[str, typer.Argument(help="Images: a folder, a list, shards or any other source (docs/data.md).")],
    extraction: FeatureOptions,
    model: _Model = None,
    out: Annotated[Path, typer.Option(help="Folder for duplicates.html, duplicates.json and the features.")] = Path(
        "duplicates"
    ),
    threshold: Annotated[
        str, typer.Option(help="Minimum similarity of copies, from 0 to 1; auto derives it from the images.")
    ] = "auto",
    features: _Features = None,
    branch: Annotated[str, typer.Option(help="Encoder of a run: teacher or student.")] = "teacher",
    epoch: options.Epoch = None,
    remove_list: Annotated[
        Path | None,
        typer.Option(help="Also write a list of the files to remove to this .txt, .nul (for xargs -0) or .csv file."),
    ] = None,
) -> None:
    """Group near-duplicate images for you to review. Nothing is deleted."""
    options.check_model(model)
    from carp.commands.duplicates import duplicates
    from carp.report.pages.copies_page import print_copies

    found = duplicates(
        data,
        model,
        out=out,
        threshold=threshold,
        features=features,
        branch=branch,
        epoch=epoch,
        remove_list=remove_list,
        quiet=False,
        **extraction.model_dump(),
    )
    print_copies(found)
    if remove_list is not None:
        typer.echo(f"files to remove: {remove_list}   ({found.surplus:,} files; look at the page first)")
    say(f"page: {out / 'duplicates.html'}   list: {out / 'duplicates.json'}   (nothing was deleted)")


@app.command("cluster")
@with_model_options
def _cluster(
    data: Annotated[str, typer.Argument(help="Images: a folder, a list, shards or any other source (docs/data.md).")],
    extraction: FeatureOptions,
    model: _Model = None,
    clusters: Annotated[
        str,
        typer.Option(
            help="Number of clusters; auto derives it from the images, prototypes uses those of the run.",
            autocompletion=completion.one_of("auto", "prototypes"),
        ),
    ] = "auto",
    out: Annotated[Path, typer.Option(help="Folder for the table, the page and the features.")] = Path("clusters"),
    folders: Annotated[
        bool, typer.Option("--folders", help="Also write a folder of links per cluster; nothing is copied or moved.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of k-means.")] = 0,
    features: _Features = None,
    branch: Annotated[str, typer.Option(help="Encoder of a run: teacher or student.")] = "teacher",
    epoch: options.Epoch = None,
) -> None:
    """Assign every image to a cluster; write a table, and a page with the images of each cluster."""
    options.check_model(model)
    options.check_data(data)
    from carp.commands.cluster import cluster

    found = cluster(
        data,
        model,
        clusters=clusters,
        out=out,
        folders=folders,
        seed=seed,
        features=features,
        branch=branch,
        epoch=epoch,
        quiet=False,
        **extraction.model_dump(),
    )
    say(f"{len(found.names):,} clusters of {len(found.places):,} images. {found.method}")
    for note in found.notes:
        say(f"note: {note}", err=True)
    say(f"page: {out / 'clusters.html'}   table: {out / 'clusters.csv'}")
    if folders:
        say(f"folders: {out / 'folders'}")


@app.command("label")
@with_model_options
def _label(
    data: Annotated[str, typer.Argument(help="Images: a folder, a list, shards or any other source (docs/data.md).")],
    extraction: FeatureOptions,
    labels: Annotated[
        str, typer.Option(help="A few labelled images: a .csv file (path, label), or a folder with sub-folders.")
    ],
    model: _Model = None,
    out: Annotated[Path, typer.Option(help="Folder for the tables, the page and the features.")] = Path("labels"),
    suggest: Annotated[int, typer.Option(min=0, help="Number of images to suggest for labelling.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the held-out labels and of the classifiers.")] = 0,
    features: _Features = None,
    branch: Annotated[str, typer.Option(help="Encoder of a run: teacher or student.")] = "teacher",
    epoch: options.Epoch = None,
) -> None:
    """Predict the labels of all images from a few labelled ones, and suggest which images to label next."""
    options.check_model(model)
    options.check_data(data, labels)
    from carp.commands.label import label

    found = label(
        data,
        labels,
        model,
        out=out,
        suggest=suggest,
        seed=seed,
        features=features,
        branch=branch,
        epoch=epoch,
        quiet=False,
        **extraction.model_dump(),
    )
    say(f"{found.given:,} labels given, {len(found.places):,} images. {found.method}")
    if found.doubtful:
        say(f"{len(found.doubtful):,} given labels look wrong: {out / 'doubtful.csv'}")
    say(f"page: {out / 'labels.html'}   table: {out / 'labels.csv'}   label next: {out / 'suggestions.csv'}")


@app.command("export")
def _export(
    model: Annotated[str, typer.Argument(help="Run folder, RUN@25, or weights: FILE or METHOD:FILE (`carp weights`).")],
    format: Annotated[
        str,
        typer.Option(
            "--format",
            help="torchvision, timm, hf (Hugging Face Hub), safetensors, onnx or detectron2.",
            autocompletion=completion.one_of(*completion.FORMATS_OF_EXPORT),
        ),
    ],
    out: Annotated[Path, typer.Option(help="Output file; for timm and hf, a folder.")],
    branch: Annotated[str, typer.Option(help="Encoder of a run: teacher or student.")] = "teacher",
    epoch: options.Epoch = None,
) -> None:
    """Write an encoder in the format of another library, reload it there, and compare its features."""
    options.check_model(model)
    from carp.commands.export import export

    for line in export(model, out, format=format, branch=branch, epoch=epoch).lines():
        say(line)


@app.command("push")
def _push(
    model: Annotated[str, typer.Argument(help="Run folder, RUN@25, or weights: FILE or METHOD:FILE (`carp weights`).")],
    repository: Annotated[str, typer.Argument(help="OWNER/NAME on the Hugging Face Hub; created if it is missing.")],
    branch: Annotated[str, typer.Option(help="Encoder of a run: teacher or student.")] = "teacher",
    epoch: options.Epoch = None,
    private: Annotated[bool, typer.Option("--private", help="Create a private repository.")] = False,
    message: Annotated[str, typer.Option(help="Commit message.")] = "Encoder trained by CARP",
) -> None:
    """Upload an encoder and its model card to the Hugging Face Hub."""
    options.check_model(model)
    from carp.commands.push import push

    address = push(model, repository, branch=branch, epoch=epoch, private=private, message=message)
    say(f"uploaded: {address}")
