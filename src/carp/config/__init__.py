"""The configuration of a run: one flat model ↔ YAML recipe ↔ `key=value` overrides ↔ keyword arguments.

Every key means the same in all four. Values that depend on the number of images may be written `auto`; `resolve`
replaces them by the rule in `sizes_for` and returns a `Config` that holds plain values only. (`micro_batch: auto`
depends on the machine, so `carp train` replaces it: `training/micro_batch.py`.)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from carp.errors import ConfigError, nearest, received

MAX_IMAGE_PIXELS = 200_000_000  # the largest sensors; 600 MB once decoded
SMALL_IMAGE = 64  # up to this side: a small stem, images held in memory, views rendered a batch at a time


@dataclass(frozen=True)
class Form:
    """How a setting of several numbers is written, in the words of messages."""

    words: str


Probability = Annotated[float, Field(ge=0, le=1)]
PerView = Annotated[tuple[Probability, Probability, Probability], Form("[first global, second global, local view]")]
Fraction = Annotated[float, Field(gt=0, le=1)]
Range = Annotated[tuple[Fraction, Fraction], Form("[low, high]")]


# Bounds beyond anything that was ever useful, so that a slip of the finger is found before it overflows something
_MOST_STEPS = 1_000_000_000
_MOST_EPOCHS = 1_000_000
_LARGEST_FACTOR = 1e6
_MOST_MINUTES = 1e6  # about two years
_LARGEST_SIDE = 1_000_000
_LARGEST_WIDTH = 1_000_000
_LARGEST_BATCH = 1 << 24
_MOST_PROTOTYPES = 10**12


def _start_and_end(value: object) -> object:
    """A single number is a schedule that stays where it is (YAML 1.1 reads 1e-3 as text)."""
    return (value, value) if isinstance(value, int | float | str) else value


NonNegative = Annotated[float, Field(ge=0, le=_LARGEST_FACTOR)]
_SCHEDULE = Form("one number or [start, end]")
Schedule = Annotated[tuple[NonNegative, NonNegative], BeforeValidator(_start_and_end), _SCHEDULE]
MomentumSchedule = Annotated[tuple[Probability, Probability], BeforeValidator(_start_and_end), _SCHEDULE]


def _nearest_divisors(num_prototypes: int, block_size: int) -> tuple[int, int]:
    """Return the divisors of `num_prototypes` just below and just above `block_size`."""
    small = [n for n in range(1, math.isqrt(num_prototypes) + 1) if num_prototypes % n == 0]
    divisors = [*small, *(num_prototypes // n for n in small)]
    return max(n for n in divisors if n <= block_size), min(n for n in divisors if n >= block_size)


def check_block_size(num_prototypes: int, block_size: int) -> None:
    """Raise unless blocks of `block_size` cover all prototypes, none left out."""
    if num_prototypes < 1 or block_size < 1:
        raise ConfigError(
            f"num_prototypes and block_size must be at least 1, received {num_prototypes} and {block_size}."
        )
    if block_size > num_prototypes:
        raise ConfigError(
            f"block_size must be at most num_prototypes ({num_prototypes}), received {block_size}. "
            f"block_size={num_prototypes} is a single block (CARL)."
        )
    if num_prototypes % block_size:
        below, above = _nearest_divisors(num_prototypes, block_size)
        raise ConfigError(
            f"block_size must divide num_prototypes ({num_prototypes}), received {block_size}. "
            f"The nearest divisors are {below} and {above}."
        )


class Config(BaseModel):
    """Everything that decides a run. The defaults are the paper's ImageNet settings for 100 epochs, two views."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)

    # Length
    epochs: int = Field(100, ge=1, le=_MOST_EPOCHS, description="How often every image is seen.")
    batch_size: int = Field(4096, ge=2, le=_LARGEST_BATCH, description="Images in one step of the optimiser.")
    micro_batch: int | None = Field(
        None,
        ge=2,
        le=_LARGEST_BATCH,
        description="Images that pass the encoder at once; auto is as many as fit into memory.",
    )
    accumulate: Literal["exact", "fast"] = Field(
        "exact",
        description="How micro-batches add up: exact is the loss of the whole batch, in two passes; fast is the mean "
        "of their own losses, in one.",
    )
    seed: int = Field(0, ge=0, lt=2**63, description="Decides every random number of the run.")

    # Data
    source: Literal["auto", "folder", "list", "tar", "parquet", "torchvision", "dataset", "embedded"] = Field(
        "auto", description="What the images are given as; auto looks at the path. docs/data.md has an example of each."
    )
    root: str | None = Field(None, description="Folder of data sets, for torchvision:NAME and dataset:NAME.")
    download: bool = Field(False, description="Whether torchvision may fetch a data set that is not in root.")
    shuffle_buffer: int = Field(
        10_000,
        ge=1,
        le=_MOST_STEPS,
        description="Images that are mixed at a time when they come from tar shards or Parquet files: shards are drawn "
        "in random order, and as many as hold so many images are shuffled together.",
    )

    # Views
    global_size: int = Field(
        224,
        ge=8,
        le=_LARGEST_SIDE,
        description="Side of the two global views in pixels; also the size at which images are encoded.",
    )
    global_scale: Range = Field((0.2, 1.0), description="Share of the image's area that a global view shows.")
    local_views: int = Field(0, ge=0, le=1000, description="Small views beside the two global ones (multi-crop).")
    local_size: int = Field(96, ge=8, le=_LARGEST_SIDE, description="Side of a local view in pixels.")
    local_scale: Range = Field((0.05, 0.2), description="Share of the image's area that a local view shows.")
    flip: Probability = Field(0.5, description="Chance that a view is mirrored left to right.")
    jitter: Probability = Field(0.8, description="Chance that the colours of a view are changed.")
    brightness: Probability = Field(0.4, description="How much the brightness may change.")
    contrast: Probability = Field(0.4, description="How much the contrast may change.")
    saturation: Probability = Field(0.2, description="How much the saturation may change.")
    hue: float = Field(0.1, ge=0, le=0.5, description="How far the hue may turn; 0.5 is every hue.")
    grey: Probability = Field(0.2, description="Chance that a view loses its colours.")
    blur: PerView = Field((1.0, 0.1, 0.5), description="Chance of blur.")
    solarise: PerView = Field((0.0, 0.2, 0.0), description="Chance that bright pixels are inverted.")

    # Model
    encoder: str = Field("resnet50", description="Name of a timm model.")
    encoder_options: dict[str, Any] = Field({}, description="Options of the timm model that describe the network.")
    stem: Literal["auto", "encoder", "small"] = Field(
        "auto",
        description="First layers: encoder keeps the encoder's own, small is one 3×3 convolution without pooling "
        f"(ResNets only), auto is small for ResNets with global_size up to {SMALL_IMAGE}.",
    )
    stem_stride: int = Field(
        1, ge=1, le=4, description="Stride of the small stem; 2 is about four times cheaper than 1."
    )
    projector_hidden: int = Field(2048, ge=1, le=_LARGEST_WIDTH, description="Width of the projector's hidden layers.")
    embedding: int = Field(256, ge=1, le=_LARGEST_WIDTH, description="Dimensions of embeddings and prototypes.")
    embedding_scale: float = Field(
        1.0,
        gt=0,
        le=_LARGEST_FACTOR,
        description="Factor on the projector's last layer at the start; small data start faster with 5.",
    )
    embedding_length: float | None = Field(
        None,
        gt=0,
        le=_LARGEST_FACTOR,
        description="Length of every embedding vector; null leaves it free, as in the paper.",
    )
    num_prototypes: int = Field(65_536, ge=1, le=_MOST_PROTOTYPES, description="Number of prototypes.")
    block_size: int = Field(
        512,
        ge=1,
        le=_MOST_PROTOTYPES,
        description="Prototypes in a block; must divide num_prototypes. Equal to it, it is one block (CARL).",
    )
    partition: Literal["random", "fixed"] = Field(
        "random", description="Whether the prototypes are dealt into new blocks at every step."
    )
    prototypes: Literal["replicated", "sharded"] = Field(
        "replicated",
        description="Whether every process has all prototypes, or its share of them (docs/scaling.md). Blocks are then "
        "drawn inside shards, and shards exchange prototypes.",
    )
    prototype_shards: int | None = Field(
        None,
        ge=1,
        le=_MOST_PROTOTYPES,
        description="Number of shards; null is the number of processes that the run begins with.",
    )
    exchange_steps: int = Field(
        100, ge=1, le=_MOST_STEPS, description="Steps from one exchange between shards to the next."
    )
    exchange_share: Fraction = Field(0.5, description="Share of its prototypes that a shard gives away at an exchange.")
    entropy_weight: Schedule = Field(
        (1.0, 1.0), description="Weight of kl_to_uniform: more of it spreads images over more prototypes."
    )
    teacher_momentum: MomentumSchedule = Field(
        (0.99, 1.0), description="Share of itself that the teacher keeps at a step; 0 is no teacher."
    )

    # Optimiser
    optimiser: Literal["lars", "sgd", "adamw"] = Field("lars", description="What turns gradients into steps.")
    lr: Schedule = Field((0.6, 0.006), description="Learning rate; see lr_scaling.")
    prototype_lr: float = Field(
        1.0,
        ge=0,
        le=_LARGEST_FACTOR,
        description="Learning rate of the prototypes relative to lr; 0 leaves them as drawn.",
    )
    lr_scaling: Literal["linear", "none"] = Field(
        "linear", description="linear multiplies the start of lr by batch_size / 256; none takes it as it is."
    )
    warmup_epochs: float = Field(
        0.0, ge=0, le=_MOST_EPOCHS, description="Epochs in which lr rises from nearly 0 to its start."
    )
    weight_decay: Schedule = Field((1e-6, 1e-6), description="Pull of matrices and filters towards 0.")
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of lars and sgd.")
    trust: float = Field(
        0.001, gt=0, le=_LARGEST_FACTOR, description="Size of a lars step relative to the norm of the weights."
    )
    clip_gradient: float | None = Field(
        None, gt=0, le=1e12, description="Longest gradient; a longer one is cut to this norm."
    )

    # Machine
    sync_batch_norm: bool = Field(
        True,
        description="Whether batch norm sees the images of all processes (torchrun); false is faster, and the result "
        "then depends on the number of processes.",
    )
    timeout_minutes: float = Field(
        30.0, gt=0, le=_MOST_MINUTES, description="How long a process waits for another one before the run ends."
    )
    device: str = Field("auto", description="cpu, cuda, cuda:1 or mps; auto takes the fastest that is there.")
    threads: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = Field(
        "auto",
        description="Threads that compute on a CPU; auto finds the best number while other programs come and go, and "
        "records it in threads.jsonl. OMP_NUM_THREADS in the environment fixes it, too.",
    )
    precision: Literal["fp32", "bf16"] = Field("fp32", description="bf16 is faster where the processor supports it.")
    channels_last: bool = Field(True, description="Memory layout of images; true is faster for convolutions.")
    compile: bool = Field(False, description="Compile the student's encoder: slow start, then maybe faster steps.")
    workers: int = Field(
        2, ge=0, le=1024, description=f"Processes that decode images, for global_size above {SMALL_IMAGE}."
    )
    max_image_pixels: int = Field(
        MAX_IMAGE_PIXELS,
        ge=1,
        le=1 << 40,
        description="Largest image that is decoded, in pixels; larger ones count as unreadable.",
    )

    # Run
    validation: str | None = Field(
        None, description="Labelled images for k-NN while training (--val); labels never train the encoder."
    )
    validate_epochs: int = Field(1, ge=1, le=_MOST_EPOCHS, description="Epochs from one k-NN validation to the next.")
    log_steps: int = Field(10, ge=1, le=_MOST_STEPS, description="Steps from one line of metrics.jsonl to the next.")
    tensorboard: bool = Field(False, description="Also write curves for TensorBoard.")
    checkpoint_steps: int = Field(
        500, ge=1, le=_MOST_STEPS, description="Steps from one checkpoint to the next, at most."
    )
    checkpoint_minutes: float = Field(
        10.0, gt=0, le=_MOST_MINUTES, description="Minutes from one checkpoint to the next, at most."
    )
    keep_checkpoints: int = Field(
        3, ge=2, le=_MOST_EPOCHS, description="How many checkpoints are kept, the newest ones."
    )
    health_steps: int = Field(50, ge=1, le=_MOST_STEPS, description="Steps from one diagnosis to the next.")
    on_collapse: Literal["warn", "stop"] = Field("warn", description="What happens when the run collapses.")
    max_bad_share: Probability = Field(
        0.05, description="Share of images that may be unreadable; others take their places. Above it the run stops."
    )

    @model_validator(mode="after")
    def _values_fit_together(self) -> Self:
        for key in ("global_scale", "local_scale"):
            low, high = getattr(self, key)
            if low > high:
                raise ValueError(f"{key} must be [low, high] with low <= high, received {[low, high]}")
        if self.micro_batch and self.batch_size % self.micro_batch == 1:
            raise ValueError(
                f"micro_batch must not leave a single image of batch_size ({self.batch_size}), which batch norm cannot "
                f"take, received {self.micro_batch}"
            )
        if self.warmup_epochs >= self.epochs:
            raise ValueError(f"warmup_epochs must be less than epochs ({self.epochs}), received {self.warmup_epochs}")
        check_block_size(self.num_prototypes, self.block_size)
        if self.num_prototypes % (self.shards * self.block_size):
            raise ValueError(
                f"num_prototypes must be a multiple of prototype_shards x block_size ({self.shards} x "
                f"{self.block_size}), received {self.num_prototypes}"
            )
        return self

    @property
    def shards(self) -> int:
        """How many shards the prototypes are dealt into; blocks do not reach across them."""
        return (self.prototype_shards or 1) if self.prototypes == "sharded" else 1

    @property
    def siamese(self) -> bool:
        """Whether student and teacher share their weights."""
        return self.teacher_momentum == (0.0, 0.0)

    @property
    def base_lr(self) -> float:
        """The starting learning rate, scaled with the batch."""
        scale = self.batch_size / 256 if self.lr_scaling == "linear" else 1.0
        return self.lr[0] * scale


# The first key of every group, in the order of the class.
GROUPS = {
    "epochs": "Length",
    "source": "Data",
    "global_size": "Views",
    "encoder": "Model",
    "optimiser": "Optimiser",
    "sync_batch_norm": "Machine",
    "validation": "Run",
}

# Keys that may change between a run and its continuation, because they do not change what is computed.
FREE_KEYS = frozenset(
    {
        "source",
        "root",
        "download",
        "device",
        "threads",
        "workers",
        "timeout_minutes",
        "max_bad_share",
        "tensorboard",
        "checkpoint_steps",
        "checkpoint_minutes",
        "keep_checkpoints",
        "on_collapse",
    }
)

# Keys that change no weight but the lines of metrics.jsonl, which must be those of a run never interrupted.
METRICS_KEYS = frozenset({"log_steps", "health_steps", "validate_epochs"})


class Sizes(BaseModel):
    """What the number of images decides, where a recipe says `auto`."""

    epochs: int
    batch_size: int
    num_prototypes: int
    block_size: int


def sizes_for(num_images: int) -> Sizes:
    """The rule for a person's own images.

    - batch_size: the power of two nearest below an eighth of the images, from 16 to 256; of fewer than 16 images all.
    - epochs: about one million images seen in all, from 20 to 400 epochs.
    - num_prototypes: a power of two near half the number of images, from 256 to 65,536 (the paper over-clusters).
    - block_size: the batch, or the power of two below it: a block's mean assignment is estimated from the batch, and
      the larger the block, the less certain the assignments may be (docs/decisions/0005).
    """
    batch_size = min(256, max(16, _power_of_two(num_images // 8)), max(2, num_images))
    return Sizes(
        epochs=min(400, max(20, round(1_000_000 / max(num_images, 1)))),
        batch_size=batch_size,
        num_prototypes=min(65_536, max(256, _power_of_two(num_images // 2))),
        block_size=_power_of_two(batch_size),
    )


def _power_of_two(n: int) -> int:
    return 1 << max(n, 1).bit_length() - 1


def resolve(values: Mapping[str, Any], *, num_images: int) -> Config:
    """Replace every `auto` by the rule of `sizes_for` and check all keys and values."""
    sizes = sizes_for(num_images).model_dump()
    auto = {key: sizes[key] for key, value in values.items() if value == "auto" and key in sizes}
    try:
        return Config.model_validate({**values, **auto})
    except ValidationError as error:
        raise ConfigError(_describe(error)) from error


def check_keys(values: Mapping[str, Any]) -> None:
    """Find misspelt keys and values that no number of images could make right."""
    try:
        Config.model_validate({key: value for key, value in values.items() if value != "auto"})
    except ValidationError as error:
        single = [item for item in error.errors() if item["loc"]]
        if single:
            raise ConfigError(_describe(error)) from error
    except ConfigError:
        pass  # values that do not fit together may fit once the sizes are known


def form_of(key: str) -> str:
    """How a setting of several numbers is written; empty for all others."""
    return next((item.words for item in Config.model_fields[key].metadata if isinstance(item, Form)), "")


def _describe(error: ValidationError) -> str:
    """One line a problem: the key, the value received, what is accepted, the nearest spelling."""
    problems = []
    for item in error.errors():
        key, value, message = str(item["loc"][0]) if item["loc"] else "", item["input"], item["msg"]
        message = message.replace("Input should be", "must be").replace("Value error, ", "")
        if item["type"] == "extra_forbidden":
            problems.append(f"there is no setting '{key}'.{nearest(key, Config.model_fields)}")
        elif not key:
            problems.append(f"{message}.")
        elif item["type"] in {"missing", "too_long", "tuple_type"}:  # a wrong number of numbers
            problems.append(f"{key} must be {form_of(key)}, received {received(value)}.")
        else:
            accepted = item.get("ctx", {}).get("expected", "")
            hint = nearest(received(value).strip("'"), str(accepted).replace("'", "").replace(" or ", ", ").split(", "))
            problems.append(f"{key} {message}{_both_bounds(key)}, received {received(value)}.{hint}")
    return " ".join(dict.fromkeys(problems))  # both ends of a pair may have the same problem


def _both_bounds(key: str) -> str:
    """The accepted range of a number that has one, as an addition to the bound that was missed."""
    low, high = (
        next((getattr(item, name) for item in Config.model_fields[key].metadata if hasattr(item, name)), None)
        for name in ("ge", "le")
    )
    return "" if low is None or high is None else f" (accepted: {low} to {high})"


def differences(ours: Config, theirs: Config) -> dict[str, str]:
    """`theirs -> ours` for every key that changes what is computed or written."""
    return {
        key: f"{getattr(theirs, key)!r} -> {getattr(ours, key)!r}"
        for key in Config.model_fields
        if key not in FREE_KEYS and getattr(ours, key) != getattr(theirs, key)
    }


def decisive(config: Config) -> dict[str, Any]:
    """The settings that change what is computed or written, as plain values for JSON."""
    return {key: value for key, value in config.model_dump(mode="json").items() if key not in FREE_KEYS}
