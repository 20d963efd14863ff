"""Small valid files of every kind, most of them made by the commands themselves; damage starts from these."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from carp.features import filling
from tests.fuzz.case import OUT, Case, Outcome
from tests.fuzz.interpreter import Interpreter
from tests.fuzz.oracle import faults
from tests.helpers import tiny_images, write_images, write_recipe

_IMAGES, _CLASSES, _SIZE = 24, 3, 16


@dataclass
class Valid:
    """A folder of valid files. What is dear is made when it is first asked for."""

    folder: Path
    interpreter: Interpreter

    @cached_property
    def images(self) -> Path:
        """24 images of 16 pixels in three classes."""
        return write_images(self.folder / "images", tiny_images(_IMAGES, _SIZE), classes=_CLASSES)

    @cached_property
    def flat(self) -> Path:
        """Eight images without labels."""
        return write_images(self.folder / "flat", tiny_images(8, _SIZE, seed=1))

    @cached_property
    def query(self) -> Path:
        """One image."""
        return write_images(self.folder / "query", tiny_images(1, _SIZE, seed=2)) / "000.png"

    @cached_property
    def recipe(self) -> Path:
        """One epoch of three steps."""
        return write_recipe(
            self.folder / "tiny.yaml", epochs=1, batch_size=8, global_size=_SIZE, checkpoint_steps=1, workers=0,
            num_prototypes=16, projector_hidden=8, embedding=4, max_image_pixels=50_000_000,
            encoder_options={"layers": [1, 1, 1, 1], "channels": [4, 4, 8, 8], "stem_type": "deep", "stem_width": 4},
        )  # fmt: skip

    @cached_property
    def run(self) -> Path:
        """A finished run of three steps with a checkpoint of each."""
        return self._make("run", "train", self.images, "--recipe", self.recipe, "--out", f"{OUT}/run")

    @cached_property
    def store(self) -> Path:
        """Features of the images."""
        return self._make("store", "embed", self.run, "--data", self.images, "--out", f"{OUT}/store")

    @cached_property
    def unfinished_store(self) -> Path:
        """What a process leaves that is killed before it writes the manifest of a store."""
        words = ("embed", self.run, "--data", self.images, "--out", f"{OUT}/unfinished")
        return self._make("unfinished", *words, before=_die_before_the_manifest)

    def index(self, kind: str) -> Path:
        """An index of the store in a folder `index` beside a copy of it: a folder with both."""
        folder = self.folder / f"index-{kind}"
        if not folder.exists():
            words = ("index", f"{OUT}/x/store", "--out", f"{OUT}/x/index", "--kind", kind)
            self._make(folder.name, *words, files={f"{OUT}/x/store": self.store}, made="x")
        return folder

    @cached_property
    def result(self) -> Path:
        """The file of a result."""
        words = ("eval", "knn", self.run, "--data", self.images, "--branch", "teacher", "--out", f"{OUT}/evaluated")
        return next((self._make("evaluated", *words) / "results").glob("*.json"))

    def export(self, form: str, suffix: str) -> Path:
        """The encoder of the run in another format."""
        path = self.folder / f"export{suffix}"
        if not path.exists():
            self._make(path.name, "export", self.run, "--format", form, "--out", f"{OUT}/export{suffix}")
        return path

    @cached_property
    def copies(self) -> Path:
        """Originals and altered copies of them."""
        return self._make("copies", "data", "attack", self.flat, "--attacks", "jpeg", "--out", f"{OUT}/copies")

    def undamaged(self, case: Case, result: Callable[[Outcome, Path], object]) -> tuple[Outcome, object]:
        """The outcome of a command on undamaged files, which must be without fault, and what it made of them."""
        folder = self.interpreter.start(case)
        ((_, outcome, _),) = list(self.interpreter.finish())
        assert not (wrong := faults(case, outcome, folder)), f"carp {' '.join(case.words)}: {wrong} {outcome.stderr}"
        made = result(outcome, folder) if outcome.code == 0 else None
        shutil.rmtree(folder)
        return outcome, made

    def _make(
        self,
        name: str,
        *words: object,
        files: dict[str, bytes | Path] | None = None,
        made: str = "",
        before: Callable[[], None] | None = None,
    ) -> Path:
        """Let a command write something, and keep it as `name`."""
        case = Case(tuple(map(str, words)), files or {})
        folder = self.interpreter.start(case, limited=False, before=before)
        ((_, outcome, _),) = list(self.interpreter.finish())
        assert outcome.code == 0, f"carp {' '.join(case.words)}: {outcome.stderr}"
        shutil.move(folder / OUT / (made or name), self.folder / name)
        shutil.rmtree(folder)
        return self.folder / name


def _die_before_the_manifest() -> None:
    filling.write_manifest = lambda _store: os._exit(0)


def ground_truth(names: list[str]) -> dict[str, object]:
    """A ground truth as revisited Oxford and Paris have it."""
    judged = [
        {"easy": [1, 2], "hard": [3], "junk": [], "bbx": [0.0, 1.0, 12.0, 13.0]},
        {"easy": [0], "hard": [], "junk": [4, 5], "bbx": [1.0, 0.0, 16.0, 9.0]},
    ]
    return {"gnd": judged, "imlist": names, "qimlist": names[:2]}


def as_arrays(truth: dict[str, object]) -> dict[str, object]:
    """The same with arrays in the place of lists, as some write it."""
    judged = json.loads(json.dumps(truth["gnd"]))
    return {**truth, "gnd": [{key: np.array(value) for key, value in entry.items()} for entry in judged]}
