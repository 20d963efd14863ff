"""k-NN accuracy of student and teacher during training, and of the baselines."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from carp.compute import distributed
from carp.config import Config
from carp.errors import DataError, UnreadableImageError
from carp.evaluation.nearest_neighbours import knn_accuracy, knn_leave_one_out
from carp.features.extract import RAW_PIXELS_SIDE, extract
from carp.images.labels import single_labels
from carp.images.loading.quarantine import Unreadable, nothing_to_read
from carp.images.source import Source, read
from carp.images.sources.subset import Subset, at_random
from carp.model.carp import Carp
from carp.model.own_normalisation import for_imagenet_images

_LARGEST_BANK = 10_000
_LARGEST_QUERIES = 5_000
_NEIGHBOURS = 20
_ENOUGH_TO_SHARE = 100  # fewer images are encoded by every process


class Validation:
    """Measures models by k-NN on labelled images.

    The bank is the training set if it has the classes of the validation set; otherwise it is the validation set itself,
    with leave-one-out. A fixed random sample represents a large set, unless `validation_bank` is `all`:
    then the accuracy is that of `carp eval knn` with k = 20. Images that cannot be read are left out.
    On a GPU, a run in bf16 is also validated in bf16.
    """

    def __init__(
        self,
        config: Config,
        train: Source,
        validation: Source,
        device: torch.device,
        *,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        single_labels(validation, "validation by k-NN")
        self._config, self._device, self._warn = config, device, warn
        sampled = config.validation_bank == "sample"
        self._queries = at_random(validation, _LARGEST_QUERIES, seed=config.seed) if sampled else validation
        self._bank = None
        if train.classes == validation.classes:
            self._bank = at_random(train, _LARGEST_BANK, seed=config.seed) if sampled else train
        for source in (self._queries, self._bank) if self._bank else (self._queries,):
            _check_readable(source)
        self._warned: set[str] = set()

    def __call__(self, model: Carp) -> dict[str, float]:
        """Return the accuracy of the student, and of the teacher if there is one."""
        encoders = {"knn_student": model.student.encoder}
        if not model.siamese:
            encoders["knn_teacher"] = model.teacher.encoder
        return dict(zip(encoders, self._accuracies_of(*encoders.values()), strict=True))

    def baselines(self, untrained: Carp) -> dict[str, float]:
        """Return the accuracy of raw pixels, and of the encoder before its first step."""
        before = "knn_untrained" if self._config.start is None else "knn_start"
        return {
            "knn_raw_pixels": self._accuracies([nn.Flatten()], min(self._config.global_size, RAW_PIXELS_SIDE))[0],
            before: self._accuracies_of(untrained.student.encoder)[0],
        }

    def _accuracies_of(self, *encoders: nn.Module) -> list[float]:
        config = self._config
        ours = [for_imagenet_images(encoder, config.mean, config.deviation) for encoder in encoders]
        return self._accuracies(ours, config.global_size)

    def _accuracies(self, encoders: Sequence[nn.Module], size: int) -> list[float]:
        """Return the accuracy of each encoder; every image is decoded once for all of them."""
        together = SideBySide(encoders)
        queries, asked = self._labelled(together, self._queries, size)
        bank, known = self._labelled(together, self._bank, size) if self._bank else (queries, asked)
        k, device = max(1, min(_NEIGHBOURS, len(bank) - 1)), self._device
        own = [[np.ascontiguousarray(part) for part in np.split(both, len(encoders), 1)] for both in (bank, queries)]
        return [
            knn_accuracy(bank, known, queries, asked, k=k, device=device)
            if self._bank
            else knn_leave_one_out(queries, asked, k=k, device=device)
            for bank, queries in zip(*own, strict=True)
        ]

    def _labelled(self, encoder: nn.Module, source: Source, size: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        first, last = distributed.share(len(source), distributed.rank())
        if len(source) < _ENOUGH_TO_SHARE:
            first, last = 0, len(source)
        part, shared = Subset(source, np.arange(first, last)), last - first < len(source)
        found = extract(
            encoder,
            part,
            size=size,
            device=self._device,
            may_be_empty=shared,
            interpolation=self._config.interpolation,
            precision="bf16" if self._config.precision == "bf16" and self._device.type != "cpu" else "fp32",
        )
        if (
            source is self._queries and (note := found.note()) and note not in self._warned
        ):  # training reports its own images
            self._warned.add(note)
            self._warn(f"validation: {note}")
        assert source.labels is not None
        features, indices = torch.from_numpy(found.features), torch.from_numpy(first + np.asarray(found.indices))
        if shared:  # a share without a single image that can be read does not know the length of a feature
            features = features.view(len(features), distributed.all_reduce_max([features.shape[1]])[0])
            features, indices = distributed.all_gather_rows(features), distributed.all_gather_rows(indices)
        if not len(features):
            raise DataError(
                f"none of the {len(source):,} images of {source.name} can be read any longer. Restore them and rerun "
                "the command."
            )
        return features.numpy(), source.labels[indices.numpy()]


class SideBySide(nn.Module):
    """Several encoders with features of one length: the features of all, one after the other."""

    def __init__(self, encoders: Sequence[nn.Module]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(self, images: Tensor) -> Tensor:
        """Return features [B, number of encoders · F]."""
        return torch.cat([encoder(images) for encoder in self.encoders], dim=1)


def _check_readable(source: Source) -> None:
    """Raise an error now, not after the first epoch, if no image can be read."""
    unreadable = []
    for index in range(len(source)):
        try:
            read(source, index)
        except UnreadableImageError as error:
            unreadable.append(Unreadable(index, error.place, error.reason))
        else:
            return
    raise nothing_to_read(source.name, unreadable)
