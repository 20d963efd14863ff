"""Writes the tables, the plots and docs/comparison.md from the results of all datasets."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare.measures import MEASURES
from benchmarks.compare.method import Method
from benchmarks.compare.methods import IDEAS, METHODS
from benchmarks.compare.plot import plot_dataset
from benchmarks.compare.ranges import Range
from benchmarks.compare.summary import DatasetResults, read_results, title_of
from benchmarks.compare.tables import (
    choices_table,
    jobs_csv,
    markdown_table,
    results_csv,
    results_table,
    summary_table,
)
from carp.console.quantities import counted
from carp.files.atomic import write_atomic

_INTRODUCTION = """# Methods compared

CARP and seven other methods, each with the same encoder, images, views per image, batch, steps and number of trials.
The commands run in a checkout, in an environment with the extra `bench` (`make setup`, then `. .venv/bin/activate`):

    python -m benchmarks.compare run --name cifar10 --train cifar10/train --test cifar10/test --images 10000 \\
        --epochs 6 --trials-only
    python -m benchmarks.compare run --name cifar10-ten-epochs --choices cifar10 --train cifar10/train \\
        --test cifar10/test --epochs 10
    python -m benchmarks.compare run --name gtsrb --train gtsrb_48/train --test gtsrb_48/test --epochs 6 \\
        --group '\\d+/\\d+_' --set flip=0 precision=bf16
    python -m benchmarks.compare run --name pets --train dataset:pets:train --test dataset:pets:test --root pets \\
        --size 64 --epochs 20 --set stem=encoder
    python -m benchmarks.compare run --name gtsrb-fp32 --train gtsrb_48/train --test gtsrb_48/test --epochs 6 \\
        --group '\\d+/\\d+_' --set flip=0 --methods carp-koleo
    python -m benchmarks.compare table --page docs/comparison.md

Run a command again to continue it, or several times at once to share its jobs. The last command writes this page from
the result files. [Results](results.md#methods-compared) discusses the tables; `benchmarks/results/compare/trials.csv`
has every trial.

Comparisons are in fp32 unless the command says otherwise. GTSRB was run in bf16, on a processor that computes in it.
`gtsrb-fp32` has the same jobs without `precision=bf16`, for an idea that came later and was run on another processor.
SwAV's row of `gtsrb` is from before its colours were halved; it will be run again.

`gtsrb_48` has every third training frame and 5,000 of the 12,630 test images of the German traffic-sign benchmark
(GTSRB), with a shorter side of at most 48 pixels, in one folder per class. Frames of one sign are near-copies.
`--group` holds them out together, so that no held-out frame has a near-copy among the labelled images of k-NN.

Trials on ten epochs of CIFAR-10 would take more than 30 hours of one core. So the trials run on a short budget, and
`--choices` then trains the settings that they chose for longer. This puts methods at a disadvantage if their best
settings depend on the length of training.

## Rules
- **The same for all**: the encoder of the recipe `cifar10-cpu` with the same initial weights, the images and their
  order, two views per image, the batch, the number of steps, the precision and one thread. Blur is off, because the
  images are small.
- **Each method's own**: the loss, projector, optimiser family, schedules, crops and colours of its paper. There are
  exceptions, because the published choice for ImageNet does badly here or means something else in a short run: DINO has
  LARS (without clipping) and 4,096 outputs, as in solo-learn's settings for CIFAR-10, SwAV's colours have the strength
  of SimCLR's paper for CIFAR-10, and SwAV's prototypes do not move in the first 5% of the steps (0.5% in the paper,
  which is one epoch).
  Losses and heads come from `lightly` where it has them; those of Barlow Twins and VICReg are computed faster, with
  the same values. Projector widths and the prototypes of CARP and SwAV are a quarter of the published ones, as the
  encoder's channels are, and at least 128.
- **What favours CARP**: the encoder is that of CARP's own recipe. The fixed embedding length with its learning rate of
  prototypes, the momentum of 0.9 and the range of the entropy weight come from earlier tuning on CIFAR-10 ([decision
  5](decisions/0005-small-data.md)). The ranges of all methods were widened once, after an earlier round with test
  results ([decision 10](decisions/0010-comparing-methods.md)). CARP with strong KoLeo is a third version, whose range
  and distance were chosen after single runs that the other methods did not have ([decision
  12](decisions/0012-strong-koleo.md)). "CARP, recipe" is a fourth one: its trial 0 is the recipe `folder`, which those
  runs led to, and it searches only the learning rate, the width of the projector and the weight of KoLeo. It was added
  after the test results of the third version and of VICReg on CIFAR-10 and Pets were known.
- **Trials**: every method has the same number. Trial 0 is the published setting; the others are drawn at random from
  the ranges below, spread evenly over each (a Latin hypercube). With LARS, learning rates are from the same range for
  all methods. Projector widths are searched for methods with at most two other settings. A diverged trial still counts.
  The draws do not depend on the dataset: a method tries the same eight settings on each.
- **Choice**: by k-NN (k = 20) on training images that no trial trains on, of the better branch, student or teacher.
  Test images are opened only after it. Linear accuracy and NMI play no part in the choice, so the chosen setting need
  not be the best by them.
- **Test**: the chosen setting is trained again on all training images (or on as many as `--images` says) with seeds
  that no trial used. k-NN, linear classifiers on stored features (30 epochs) and k-means (NMI; 5 starts) use all
  training images; values are means ± standard deviations over seeds, in percent.
- **Baselines**: the encoder with its initial weights (one per seed) and the raw pixels, by the same measures.
- **CPU time** is that of one training on one thread. It depends less on the load of the machine than wall-clock time,
  but the jobs ran on several machines: differences below a third mean nothing.
"""

_SUMMARY = """## Summary
Values on the test images, in percent, of the student or the teacher, whichever had the better k-NN in the chosen trial.
Settings were chosen by k-NN. The best method of a column is bold. The rows below MoCo v2 are ideas for CARP, which had
more single runs before their trials than the methods above them. The last two rows are not trained.

"""


def write_comparison(out: Path, page: Path | None = None) -> list[DatasetResults]:
    """Write table.md, table.csv, trials.csv and one plot per dataset into `out`, and the page if one is given."""
    datasets = read_results(out)
    shown = [dataset for dataset in datasets if dataset.tested]
    write_atomic(out / "table.md", "\n".join(_section(dataset) for dataset in datasets))
    write_atomic(out / "table.csv", results_csv(datasets))
    write_atomic(out / "trials.csv", jobs_csv(datasets))
    for dataset in shown:
        plot_dataset(dataset, out / f"{dataset.name}.png")
    if page is not None:
        images = page.parent / "images"
        for dataset in shown:
            plot_dataset(dataset, images / f"comparison-{dataset.name}.png")
        page.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(page, page_text(datasets, with_plots=True))
    return datasets


def page_text(datasets: Sequence[DatasetResults], *, with_plots: bool) -> str:
    """Return the page: rules, a summary, results, ranges."""
    results = [_section(dataset, with_plot=with_plots) for dataset in datasets]
    if tested := [dataset for dataset in datasets if dataset.tested and dataset.study["tests"]]:
        results.insert(0, _SUMMARY + "\n".join(summary_table(tested, measure) for measure in MEASURES))
    return "\n".join([_INTRODUCTION, *(results or ["## Results\nThere are none yet.\n"]), ranges_section()])


def _section(dataset: DatasetResults, *, with_plot: bool = False) -> str:
    settings, data, effort = dataset.study["settings"], dataset.study["data"], dataset.effort
    views = f", {settings['local_views']} local views where the paper has them" if settings.get("local_views") else ""
    judged = (
        f"Trials train on {data['trials_trained_on']:,} images and are judged by {data['held_out']:,} others; their "
        f"draws have seed {effort.search_seed}."
        if dataset.choices is None
        else f"The settings are those that the trials of {dataset.choices} chose; no trials ran on this budget."
    )
    lines = [
        f"## {dataset.name}",
        f"{data['trained_on']:,} images of {settings['global_size']} pixels, {counted(settings['epochs'], 'epoch')}, "
        f"batch {settings['batch_size']}, {settings['precision']}{views}. {judged}"
        f"{'' if dataset.study['tests'] else ' The final jobs are judged by them too; no test images were opened.'}",
        "",
    ]
    if dataset.tested:
        if with_plot:
            lines += [f"![{dataset.name}](images/comparison-{dataset.name}.png)", ""]
        lines.append(results_table(dataset))
    if dataset.methods and dataset.choices is None:
        lines.append(choices_table(dataset))
    if dataset.missing:
        kind = "job" if dataset.tested else "trial"
        whose = dict.fromkeys(title_of(job.point.value) for job in dataset.missing)
        lines.append(f"Preliminary: {counted(len(dataset.missing), kind)} still to run ({'; '.join(whose)}).\n")
    if dataset.not_begun:
        lines.append(f"Not begun: {'; '.join(dataset.not_begun)}.\n")
    return "\n".join(lines)


def ranges_section() -> str:
    """Return the ranges and the fixed settings of all methods."""
    rows = [
        [method.title if first else "", name, str(values), _published(values), method.source if first else ""]
        for method in METHODS.values()
        for first, (name, values) in zip([True] + [False] * len(method.search), method.search.items(), strict=False)
    ]
    fixed = [
        [method.title, ", ".join(f"{k} {_short(v)}" for k, v in method.fixed.items())] for method in METHODS.values()
    ]
    return "\n".join(
        [
            "## Ranges",
            "Numbers between two ends are drawn evenly on a logarithmic scale. Learning rates are per 256 images. "
            "CARP's `embedding_length` 22.6 comes with `prototype_lr` 0.1, as in the recipe `cifar10-cpu`.",
            "",
            markdown_table(["method", "setting", "range", "published", "source"], rows),
            "Settings that are not searched:",
            "",
            markdown_table(["method", "settings"], fixed),
            "## Ideas for CARP",
            "Each is a method of its own, with as many trials as CARP, judged by the same held-out images. `--methods`",
            "adds it to any of the comparisons above:",
            "",
            "    python -m benchmarks.compare run --name gtsrb --train gtsrb_48/train --test gtsrb_48/test \\",
            "        --epochs 6 --group '\\d+/\\d+_' --set flip=0 precision=bf16 --methods carp-spread --trials-only",
            "",
            "Without `--trials-only`, the command goes on to the test images. We do that only for an idea whose trials",
            "are clearly ahead of CARP's. It becomes part of a recipe if it is ahead on two datasets.",
            "",
            markdown_table(
                ["idea", "what it does", "settings that differ from CARP's", "source"],
                [
                    [f"`{idea.name}`", str(idea.__doc__).splitlines()[0], _changes(idea), idea.source]
                    for idea in IDEAS.values()
                ],
            ),
        ]
    )


def _changes(idea: type[Method]) -> str:
    """Return the ranges and fixed settings in which an idea differs from CARP."""
    carp = METHODS["carp"]
    ranges = [f"{k} {v} (first: {_published(v)})" for k, v in idea.search.items() if v is not carp.search.get(k)]
    fixed = [f"{k} {_short(v)}" for k, v in idea.fixed.items() if v != carp.fixed.get(k)]
    length = [] if idea.length == 1 else [f"{idea.length:g} of the epochs"]
    return ", ".join([*ranges, *fixed, *length])


def _published(values: Range) -> str:
    return "none" if values.published is None else f"{values.published:g}"


def _short(value: Any) -> str:
    if isinstance(value, list):
        same = len(set(value)) == 1
        return _short(value[0]) if same else f"[{', '.join(f'{each:g}' for each in value)}]"
    return f"{value:g}" if isinstance(value, int | float) else str(value)
