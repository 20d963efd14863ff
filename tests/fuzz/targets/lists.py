"""Lists of images: damaged ones, and lines that name what is no image file."""

import os
from pathlib import Path
from random import Random

from tests.fuzz.case import IN, OUT, Case, Target
from tests.fuzz.targets.shards import _counted, text_of
from tests.fuzz.valid import Valid

_NAMES = (
    "pipe.jpg", "hole.jpg", "folder.jpg", "loop.jpg", "/dev/zero", "/dev/full", "/dev/stdin", "/proc/self/environ",
    "/dev/null", "missing.png", "\x1b[31mred.png", "\x1b]0;x\x07.png", "a" * 5000 + ".png",
    "../../../../../../etc/passwd", ".", "..", "~", "~nobody/x.png", "name with spaces.png", '"quoted".png',
    "semi;colon.png", "caf\u00e9.png", "\udcff\udcfe.png", "", "quux://example.com/x.png", "file:///etc/passwd",
    "zip://x.png::http://example.com/x.zip", "C:\\images\\x.png", "=1+1.png", "\u202egnp.exe", "x\rfake.png",
)  # fmt: skip
_LABELS = ("0", "cat", "\x1b[1mbold", "", " ", "9" * 400, "a" * 200_000, '"', "-1", "nan", "\u0661", "x\ty", "1,2")


def target(valid: Valid) -> Target:
    """`.txt`, `.csv` and `.tsv`, written from a grammar or damaged."""
    flat, recipe, run = valid.flat, valid.recipe, valid.run
    images = [f"flat/{path.name}" for path in sorted(flat.iterdir())]

    def valid_list(rng: Random, suffix: str) -> str:
        sign = {".txt": rng.choice("\t,"), ".csv": ",", ".tsv": "\t"}[suffix]
        labels = rng.random() < 0.6
        head = "" if suffix == ".txt" else rng.choice(("", f"path{sign}label\n" if labels else "path\n"))
        return head + "".join(f"{name}{sign}{i % 2}\n" if labels else f"{name}\n" for i, name in enumerate(images))

    def hostile_list(rng: Random, suffix: str) -> str:
        sign = {".txt": "\t", ".csv": ",", ".tsv": "\t"}[suffix]
        label = rng.choice(_LABELS)
        lines = valid_list(rng, suffix).splitlines()
        for _ in range(rng.choice((1, 1, 2, 5))):
            name = rng.choice(_NAMES)
            line = rng.choice((name, f"{name}{sign}{label}", f"{rng.choice(images)}{sign}{label}"))
            lines.insert(rng.randrange(len(lines) + 1), line)
        return rng.choice(("\n", "\n", "\r\n", "\r")).join(lines)

    def case(rng: Random) -> Case:
        suffix = rng.choice((".txt", ".csv", ".tsv"))
        name = f"{IN}/list{suffix}"
        if rng.random() < 0.5:
            data = hostile_list(rng, suffix).encode(errors="surrogateescape")
        else:
            data = text_of(rng, valid_list(rng, suffix))
        files: dict[str, bytes | Path] = {name: data, f"{IN}/flat": flat}
        chance = rng.random()
        if chance < 0.7:
            words = ("data", "check", name, "--json", "--recipe", str(recipe))
            return Case(words, files, prepare=_special_files, check=_counted, codes=frozenset({0, 1, 2}))
        if chance < 0.85:
            words = ("views", name, "--out", f"{OUT}/views.png", "--recipe", str(recipe), "--draws", "1")
            return Case(words, files, prepare=_special_files)
        words = ("embed", str(run), "--data", name, "--out", f"{OUT}/features")
        return Case(words, files, prepare=_special_files)

    return case


def _special_files(folder: Path) -> None:
    """A pipe that nobody writes to, a file of 40 GB that takes no room, a folder, a link to itself."""
    os.mkfifo(folder / IN / "pipe.jpg")
    with (folder / IN / "hole.jpg").open("wb") as file:
        file.truncate(40 * 2**30)
    (folder / IN / "folder.jpg").mkdir()
    (folder / IN / "loop.jpg").symlink_to("loop.jpg")
