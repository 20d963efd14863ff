"""How good are features, judged without labels: by fixed random views of images that training does not see.

`benchmarks/label_free.py` compares these measures with k-NN over the checkpoints of many runs.

Shapes: M images, F features, V views.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from carp.config import Config
from carp.features.extract import Features, extract
from carp.images.decoding.decode import Pixels
from carp.images.source import Source
from carp.images.views.interpolation import Interpolation
from carp.images.views.photo_views import photo_views
from carp.images.views.view_parameters import ViewKind
from carp.model.carp import Carp
from carp.model.own_normalisation import for_imagenet_images
from carp.random import Purpose
from carp.training.course import LABEL_FREE, LABEL_FREE_ERROR
from carp.training.health import effective_rank

VIEWS = 4
Progress = Callable[[int, int], None]
_NEIGHBOURS = 10
_RIDGE = 1e-4  # of the mean within-image variance: views that hardly differ must not divide by zero


class ViewsOf(Source):
    """One random view of every image of a source, the same whenever it is asked for.

    The views are moderate and do not depend on the settings of a run: a run whose own views hardly differ would
    otherwise seem perfect.
    """

    def __init__(self, source: Source, size: int, *, number: int, seed: int, interpolation: Interpolation) -> None:
        self._source, self._seed, self._number = source, seed, number
        self.name, self.fingerprint = source.name, source.fingerprint
        self._kind = ViewKind(
            size=size,
            scale=(0.2, 1.0),
            flip=0.5,
            jitter=0.8,
            strength=(0.4, 0.4, 0.2, 0.1),
            grey=0.2,
            blur=0.0,
            solarise=0.0,
            purpose=Purpose.LABEL_FREE_VIEW,
            interpolation=interpolation,
        )

    def __len__(self) -> int:
        return len(self._source)

    def fetch(self, index: int) -> Pixels:
        """The pixels of the view."""
        stored, place = self._source.fetch(index), self._source.place(index)
        (view,) = photo_views(stored, place, [self._kind], seed=self._seed, epoch=self._number, index=index)
        return view.permute(1, 2, 0).numpy()

    def place(self, index: int) -> str:
        """The place of the image."""
        return self._source.place(index)


def features_of_views(
    encoder: nn.Module,
    source: Source,
    *,
    size: int,
    device: torch.device,
    seed: int = 0,
    views: int = VIEWS,
    interpolation: Interpolation = "bicubic",
    progress: Progress = lambda _done, _all: None,
) -> tuple[Features, Features]:
    """Return the features of images as they are evaluated [M, F], and of views of them [V, M, F].

    Images that cannot be read are left out of both. `progress` counts images and views.
    """
    whole = extract(encoder, source, size=size, device=device, interpolation=interpolation)
    of_views = list[Features]()
    for number in range(views):
        progress((number + 1) * len(source), (views + 1) * len(source))
        seen = ViewsOf(source, size, number=number, seed=seed, interpolation=interpolation)
        found = extract(encoder, seen, size=size, device=device, resize=size)
        kept = np.isin(found.indices, whole.indices)
        of_views.append(found.features[kept])
    progress((views + 1) * len(source), (views + 1) * len(source))
    return whole.features, np.stack(of_views)


def view_retrieval(views_VMF: Features) -> float:
    """Share of views whose nearest neighbour among the next view of all images is that of the same image."""
    return float(view_hits(views_VMF).mean(dim=1).mean())


def view_hits(views_VMF: Features) -> Tensor:
    """The views [V, M] for which this is so: 1, otherwise 0."""
    x_VMF = _directions(views_VMF)
    own_M = torch.arange(x_VMF.shape[1])
    hits = [(x_VMF[v] @ x_VMF[v - 1].T).argmax(dim=1).eq(own_M).double() for v in range(len(x_VMF))]
    return torch.stack(hits)


def neighbour_overlap(images_MF: Features, views_VMF: Features) -> float:
    """Share of the nearest neighbours of an image that are also those of a view of it, among all images."""
    image_MF, x_VMF = _directions(images_MF), _directions(views_VMF)
    k = max(1, min(_NEIGHBOURS, len(image_MF) - 1))
    own_Mk = _neighbours(image_MF, image_MF, k)
    shared = [
        (own_Mk[:, :, None] == _neighbours(x_MF, image_MF, k)[:, None, :]).any(dim=2).double().mean() for x_MF in x_VMF
    ]
    return float(torch.stack(shared).mean())


def discriminant_rank(views_VMF: Features) -> float:
    """Effective rank of the variance between images, in units of the variance within them (LiDAR).

    An encoder that tells images apart in many directions, which their views do not change, has a high one.
    """
    return _rank_of(_discriminants(views_VMF).clamp_min(0))


def discriminant_ratio(views_VMF: Features) -> float:
    """Logarithm of the variance between images over that within them, averaged over their joint directions."""
    return float(torch.log1p(_discriminants(views_VMF).clamp_min(0)).mean())


def _discriminants(views_VMF: Features) -> Tensor:
    """Eigenvalues of the between-image covariance, whitened by the within-image covariance."""
    x_VMF = torch.from_numpy(views_VMF).double()
    mean_MF = x_VMF.mean(dim=0)
    within = (x_VMF - mean_MF).flatten(0, 1)
    between = mean_MF - mean_MF.mean(dim=0)
    within_FF, between_FF = within.T @ within / len(within), between.T @ between / len(between)
    width = len(within_FF)
    ridge = _RIDGE * within_FF.diagonal().mean().clamp_min(torch.finfo(torch.float64).tiny)
    whitener = torch.linalg.cholesky(within_FF + ridge * torch.eye(width, dtype=torch.float64))
    half = torch.linalg.solve_triangular(whitener, between_FF, upper=False)
    values: Tensor = torch.linalg.eigvalsh(torch.linalg.solve_triangular(whitener, half.T, upper=False))
    return values


# A run uses the first one: ranks rise even when training destroys an encoder (benchmarks/label_free.py)
MEASURES: dict[str, Callable[[Features, Features], float]] = {
    "view_retrieval": lambda _images, views: view_retrieval(views),
    "neighbour_overlap": neighbour_overlap,
    "effective_rank": lambda images, _views: effective_rank(torch.from_numpy(images)),
    "discriminant_rank": lambda _images, views: discriminant_rank(views),
    "discriminant_ratio": lambda _images, views: discriminant_ratio(views),
}


class Recognition(NamedTuple):
    """How many views are recognised: `view_retrieval`, and its standard error over images."""

    share: float
    error: float


class LabelFreeValidation:
    """Judges a run by held-out images without labels: every process measures the same."""

    def __init__(self, config: Config, held_out: Source, device: torch.device) -> None:
        self._config, self._images, self._device = config, held_out, device

    def __call__(self, model: Carp) -> dict[str, float]:
        """Return the value of the teacher, or of the student if there is no teacher."""
        branch = "student" if model.siamese else "teacher"
        return {f"{LABEL_FREE}_{branch}": self._recognition(model.teacher.encoder).share}

    def baselines(self, untrained: Carp) -> dict[str, float]:
        """Return the value of the start, and its standard error."""
        found = self._recognition(untrained.teacher.encoder)
        return {f"{LABEL_FREE}_start": found.share, LABEL_FREE_ERROR: found.error}

    def _recognition(self, encoder: nn.Module) -> Recognition:
        return recognition(encoder, self._images, self._config, self._device)


def recognition(
    encoder: nn.Module,
    images: Source,
    config: Config,
    device: torch.device,
    progress: Progress = lambda _done, _all: None,
) -> Recognition:
    """Measure an encoder that takes images of this configuration; features that are not finite recognise nothing."""
    images_MF, views_VMF = features_of_views(
        for_imagenet_images(encoder, config.mean, config.deviation),
        images,
        size=config.global_size,
        device=device,
        seed=config.seed,
        interpolation=config.interpolation,
        progress=progress,
    )
    if not (np.isfinite(images_MF).all() and np.isfinite(views_VMF).all()):
        return Recognition(0.0, 0.0)
    of_images_M = view_hits(views_VMF).mean(dim=0)
    error = float(of_images_M.std(correction=0)) / math.sqrt(len(of_images_M))
    return Recognition(view_retrieval(views_VMF), error)


def _directions(features: Features) -> Tensor:
    """Features as unit vectors around their mean, so that a common offset does not make all of them alike."""
    x = torch.from_numpy(np.ascontiguousarray(features))
    return F.normalize(x - x.mean(dim=-2, keepdim=True), dim=-1)


def _neighbours(queries_MF: Tensor, images_MF: Tensor, k: int) -> Tensor:
    """The k nearest images of every query, without the image of the same number."""
    cosine_MM = queries_MF @ images_MF.T
    return cosine_MM.fill_diagonal_(-2).topk(k, dim=1).indices


def _rank_of(values: Tensor) -> float:
    p = values / values.sum().clamp_min(torch.finfo(values.dtype).tiny)
    return float(torch.exp(-torch.special.xlogy(p, p).sum()))
