"""`carp.CarpEncoder`: a scikit-learn transformer from images to features, for pipelines and model selection."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from carp.commands.train import train
from carp.encoders.frozen_encoder import Encoder
from carp.encoders.load import load
from carp.errors import ConfigError, MissingExtraError
from carp.features.extract import Features
from carp.features.feature_options import ENCODER, Precision

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils.validation import check_is_fitted
except ImportError:
    raise MissingExtraError("CarpEncoder needs scikit-learn. Run `pip install 'carp-ssl[eval]'`.") from None


class CarpEncoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turns images into feature vectors, with a given model or with one that `fit` trains on the images.

    Images are an array of bytes [N, H, W, 3], or a list of paths, PIL images or arrays [H, W, 3]. Labels are never used
    for training.

    Args:
        model: A run folder or weights, as for `carp.load`; `fit` then trains nothing. None trains an encoder.
        recipe: Name of a recipe, or a YAML file, for training.
        settings: Settings for training, such as `{"epochs": 20}`.
        out: The run folder for training; a run there is resumed. None keeps the encoder only in memory.
        branch: Encoder of a run: `teacher` or `student`.
        layer: Which output: `encoder` (pooled), `projector`, or the name of a layer such as `layer3`.
        size: Side of the images in pixels. None is the size used for training.
        batch_size: Images at a time.
        precision: Precision of the encoder, `fp32` or `bf16`.
        device: Where to run the encoder: `auto`, `cpu`, `cuda` or `mps`.

    Attributes:
        encoder_: The `carp.Encoder` that `fit` loaded or trained.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        recipe: str | Path | None = None,
        settings: Mapping[str, Any] | None = None,
        out: str | Path | None = None,
        branch: str = "teacher",
        layer: str = ENCODER,
        size: int | None = None,
        batch_size: int = 256,
        precision: Precision = "fp32",
        device: str = "auto",
    ) -> None:
        self.model, self.recipe, self.settings, self.out = model, recipe, settings, out
        self.branch, self.layer, self.size = branch, layer, size
        self.batch_size, self.precision, self.device = batch_size, precision, device

    def fit(self, X: Any, y: Any = None) -> Self:
        """Load the model, or train one on the images; `y` is ignored."""
        del y
        self.encoder_ = self._given_or_trained(X)
        self._n_features_out = self.encoder_.embed(_as_data(X)[:1]).shape[1]  # as scikit-learn calls it
        return self

    def _given_or_trained(self, X: Any) -> Encoder:
        if self.model is not None:
            if self.recipe is not None or self.settings or self.out is not None:
                raise ConfigError(
                    f"CarpEncoder with a model trains nothing, received model={str(self.model)!r} and recipe, settings "
                    "or out. Leave out the model to train, or the others to use it."
                )
            return self._load(self.model)
        settings = {"device": self.device, **(self.settings or {})}
        if self.out is not None:
            return self._load(train(_as_data(X), self.out, self.recipe, quiet=True, **settings).folder)
        with tempfile.TemporaryDirectory(prefix="carp-") as folder:
            run = train(_as_data(X), Path(folder) / "run", self.recipe, quiet=True, **settings)
            encoder = self._load(run.folder)
        encoder.path = ""  # the folder is gone
        return encoder

    def transform(self, X: Any) -> Features:
        """Return the features of images, float32 [N, F]."""
        check_is_fitted(self)
        return self.encoder_.embed(_as_data(X), batch_size=self.batch_size, precision=self.precision)

    def _load(self, model: str | Path) -> Encoder:
        return load(model, self.branch, layer=self.layer, size=self.size, device=self.device)

    def __sklearn_tags__(self) -> Any:
        """Say what the input is: images, which scikit-learn cannot check."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.no_validation = True
        tags.non_deterministic = False
        return tags


def _as_data(images: Any) -> Any:
    """Return images as the rest of CARP takes them; scikit-learn may select from lists as object arrays."""
    is_list = isinstance(images, Sequence) and not isinstance(images, str)
    is_object_array = isinstance(images, np.ndarray) and images.dtype.hasobject
    return list(images) if is_list or is_object_array else images
