"""`carp data attack`: a labelled set for copy detection, made from any images."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from carp.console.progress import Display
from carp.errors import ConfigError, DataError, nearest
from carp.files.outputs import check_output_file, check_output_folder
from carp.images.inspect.attack_set import AttackPlan, write_attack_set
from carp.images.inspect.attacks import ATTACKS
from carp.images.open_source import open_images
from carp.images.source import Openable
from carp.report.pages.attack_sheet import draw_attack_sheet


@dataclass(frozen=True)
class Attacked:
    """What `attack` wrote.

    Attributes:
        folder: The folder of the originals, the copies and the manifest.
        originals: The number of originals.
        copies: The number of copies.
        unreadable: One line for each image that cannot be read and was left out.
        sheet: The PNG, if one was requested.
    """

    folder: Path
    originals: int
    copies: int
    unreadable: list[str]
    sheet: Path | None


def attack(
    data: Openable,
    *,
    out: str | Path,
    attacks: Sequence[str] = (),
    every_strength: bool = False,
    limit: int | None = None,
    seed: int = 0,
    sheet: str | Path | None = None,
    quiet: bool = True,
) -> Attacked:
    """Write originals as they are stored, altered copies of them, and a manifest that assigns copies to originals.

    The same call resumes an interrupted one. Every copy is a function of (seed, image, attack, strength).

    Args:
        data: Any image source that `train` accepts.
        out: The output folder: empty, new, or started by the same call.
        attacks: Names of attacks; all if empty.
        every_strength: Apply each attack at all of its strengths instead of one that the seed chooses per image.
        limit: Use at most this many images, chosen by the seed.
        seed: Seed of all random choices.
        sheet: Also write a contact sheet of some images and their copies to this PNG file.
        quiet: Show no progress.

    Returns:
        The folder, the number of originals and copies, and the images that could not be read.
    """
    plan = AttackPlan(seed, _checked(attacks), every_strength, limit)
    if limit is not None and limit < 1:
        raise ConfigError(f"limit must be at least 1, received {limit}. Leave it out to use all images.")
    if seed < 0:
        raise ConfigError(f"seed must be at least 0, received {seed}.")
    if sheet is not None and Path(sheet).suffix.lower() != ".png":
        raise ConfigError(f"the sheet is a PNG: its name must end in .png, received {sheet}.")
    folder, drawn = Path(out), None if sheet is None else Path(sheet)
    check_output_folder(folder)
    if drawn is not None:
        check_output_file(drawn, "--sheet")
    if isinstance(data, str | Path) and folder.resolve().is_relative_to(Path(data).resolve()):
        raise DataError(
            f"{folder} is inside {data}: the copies would be mixed with the images. Give a folder outside it."
        )
    display = Display(quiet=quiet)
    source = open_images(data, display)
    with display.counting("altering images", min(len(source), limit or len(source))) as progress:
        lists = write_attack_set(source, folder, plan, progress)
    if drawn is not None:
        draw_attack_sheet(f"{source.name}: {len(plan.attacks)} attacks, seed {seed}", folder, lists, drawn)
    return Attacked(folder, len(lists["originals"]), len(lists["copies"]), lists["unreadable"], drawn)


def _checked(attacks: Iterable[str]) -> list[str]:
    """Return the names of the attacks in the order of the table, which determines the order of the manifest."""
    names = list(attacks) or list(ATTACKS)
    for name in names:
        if name not in ATTACKS:
            raise ConfigError(f"there is no attack '{name}'.{nearest(name, ATTACKS)} Attacks: {', '.join(ATTACKS)}.")
    return [name for name in ATTACKS if name in names]
