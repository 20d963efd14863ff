"""One configuration in four spellings: model, YAML, key=value, keyword arguments."""

import math
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carp.compute.threads import available_cores
from carp.config import FREE_KEYS, GROUPS, Config, check_block_size, differences, resolve, sizes_for
from carp.config.recipe import parse_overrides, to_yaml
from carp.errors import ConfigError

calm = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
finite = st.floats(0, 1e6)
probability = st.floats(0, 1)
settings_strategy = st.fixed_dictionaries(
    {},
    optional={
        "epochs": st.integers(1, 10_000),
        "seed": st.integers(0, 2**63 - 1),
        "lr": st.one_of(finite, st.tuples(finite, finite)),
        "weight_decay": st.tuples(finite, finite),
        "teacher_momentum": st.one_of(probability, st.tuples(probability, probability)),
        "blur": st.tuples(probability, probability, probability),
        "clip_gradient": st.one_of(st.none(), st.floats(1e-6, 1e6)),
        "encoder_options": st.dictionaries(st.text("abc_", min_size=1), st.one_of(st.integers(), st.booleans())),
        "validation": st.one_of(st.none(), st.text("aé中 /:#'\"{}[],&*!|>%@`-?~\\0", max_size=12)),
        "precision": st.sampled_from(["fp32", "tf32", "bf16", "fp16"]),
        "reading": st.sampled_from(["printed", "authors"]),
        "pairs": st.sampled_from(["sum", "mean"]),
        "compile": st.booleans(),
    },
)


@calm
@given(settings_strategy)
def test_yaml_gives_back_the_configuration(values: dict[str, Any]) -> None:
    config = resolve(values, num_images=1000)
    assert resolve(yaml.safe_load(to_yaml(config)), num_images=7) == config


@calm
@given(settings_strategy)
def test_words_on_the_command_line_give_the_same_configuration(values: dict[str, Any]) -> None:
    config = resolve(values, num_images=1000)
    plain = yaml.safe_load(to_yaml(config))
    words = [f"{key}={yaml.safe_dump(value, default_flow_style=True, width=10**6)}" for key, value in plain.items()]
    assert resolve(parse_overrides(words), num_images=1000) == config


@calm
@given(st.floats(0, 1e6, allow_subnormal=True))
def test_a_number_is_a_schedule_that_stays(value: float) -> None:
    assert resolve({"lr": value}, num_images=1).lr == (value, value)
    assert resolve(parse_overrides([f"lr={value!r}"]), num_images=1).lr == (value, value)
    assert resolve({"lr": [value, 0.5]}, num_images=1).lr == (value, 0.5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-3", (1e-3, 1e-3)),
        ("[1e-3, 1e-5]", (1e-3, 1e-5)),
        ("3", (3.0, 3.0)),
        ("[0.6, 0]", (0.6, 0.0)),
        ("1E+2", (100.0, 100.0)),
    ],
)
def test_a_schedule_may_be_written_in_every_usual_way(text: str, expected: tuple[float, float]) -> None:
    assert resolve(parse_overrides([f"lr={text}"]), num_images=1).lr == expected


@pytest.mark.parametrize("value", [-1, [1, 2, 3], [1], [-1, 0], "fast", math.nan, math.inf, None, [0.1, "x"]])
def test_a_schedule_that_makes_no_sense_is_refused_with_its_value(value: object) -> None:
    with pytest.raises(ConfigError, match="lr"):
        resolve({"lr": value}, num_images=1)


@pytest.mark.parametrize(
    ("key", "form"),
    [("lr", "one number or [start, end]"), ("global_scale", "[low, high]"), ("blur", "[first global, second")],
)
@pytest.mark.parametrize("value", [[1], [1, 1, 1, 1], [], None, {}])
def test_a_wrong_number_of_numbers_is_told_how_to_write_them(key: str, form: str, value: object) -> None:
    with pytest.raises(ConfigError) as raised:
        resolve({key: value}, num_images=1)
    assert str(raised.value).startswith(f"{key} must be {form}")
    assert str(raised.value).endswith(f"received {value}.")


def test_every_setting_is_described_and_every_group_begins_with_one() -> None:
    for key, field in Config.model_fields.items():
        assert field.description, key
        assert field.description.endswith("."), key
    assert list(GROUPS) == [key for key in Config.model_fields if key in GROUPS]
    assert next(iter(GROUPS)) == next(iter(Config.model_fields))


def test_auto_is_replaced_by_the_rule_and_given_values_win() -> None:
    auto = dict.fromkeys(("epochs", "batch_size", "num_prototypes", "block_size", "held_out"), "auto")
    config, sizes = resolve(auto, num_images=5000), sizes_for(5000)
    assert {key: getattr(config, key) for key in auto} == sizes.model_dump()
    assert resolve({**auto, "epochs": 3}, num_images=5000).epochs == 3
    assert "auto" not in to_yaml(config).replace("device: auto", "").replace("stem: auto", "").replace(
        "source: auto", ""
    ).replace("threads: auto", "")


def test_auto_where_there_is_no_rule_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"embedding must be .*received 'auto'"):
        resolve({"embedding": "auto"}, num_images=100)


@calm
@given(st.integers(0, 10**8), st.booleans())
def test_the_rule_for_sizes_keeps_its_bounds(num_images: int, started: bool) -> None:
    sizes = sizes_for(num_images, started=started)
    assert min(16, max(2, num_images)) <= sizes.batch_size <= 256
    assert sizes.batch_size <= max(2, num_images)
    assert sizes.epochs >= 1
    assert 256 <= sizes.num_prototypes <= 65_536
    assert sizes.num_prototypes % sizes.block_size == 0
    assert 2 <= sizes.block_size <= min(512, sizes.num_prototypes)
    assert sizes.block_size <= sizes.batch_size
    start = {"start": "weights.safetensors"} if started else {}
    resolve({**dict.fromkeys(sizes.model_dump(), "auto"), **start}, num_images=num_images)


@calm
@given(st.integers(0, 10**8), st.integers(0, 10**8), st.booleans())
def test_more_images_mean_no_smaller_sizes_and_no_more_epochs(a: int, b: int, started: bool) -> None:
    few, many = (sizes_for(images, started=started) for images in sorted((a, b)))
    assert few.batch_size <= many.batch_size
    assert few.num_prototypes <= many.num_prototypes
    assert few.block_size <= many.block_size
    assert few.epochs >= many.epochs


@calm
@given(st.integers(1, 5000), st.integers(1, 5000))
def test_a_block_size_that_does_not_divide_is_refused_with_the_nearest_divisors(K: int, N: int) -> None:
    if K % N == 0:
        check_block_size(K, N)
        return
    with pytest.raises(ConfigError) as raised:
        check_block_size(K, N)
    message = str(raised.value)
    assert str(K) in message
    assert str(N) in message
    if N < K:
        divisors = [n for n in range(1, K + 1) if K % n == 0]
        below, above = max(n for n in divisors if n < N), min(n for n in divisors if n > N)
        assert f"The nearest divisors are {below} and {above}." in message
        check_block_size(int(message.rstrip(".").rpartition(" ")[2]), N)


def test_differences_names_every_key_that_changes_what_is_computed() -> None:
    ours, theirs = Config(epochs=3, lr=0.5, workers=7, tensorboard=True), Config(epochs=4)
    assert differences(ours, theirs) == {"epochs": "4 -> 3", "lr": "(0.6, 0.006) -> (0.5, 0.5)"}
    assert differences(ours, ours) == {}


@pytest.mark.parametrize("key", sorted(FREE_KEYS - {"reading"}))  # test_readings.py
def test_free_keys_make_no_difference(key: str) -> None:
    other = {
        "start": "lite0",
        "source": "folder",
        "root": "elsewhere",
        "download": True,
        "cache_gb": 2.5,
        "device": "cpu",
        "threads": 3,
        "deterministic": True,
        "workers": 5,
        "loggers": ("wandb",),
        "tensorboard": True,
        "report": False,
        "checkpoint_steps": 7,
        "checkpoint_minutes": 3.5,
        "keep_checkpoints": 9,
        "keep_epochs": 5,
        "timeout_minutes": 3.0,
        "on_collapse": "stop",
        "max_bad_share": 0.5,
    }[key]
    assert getattr(Config(), key) != other
    assert differences(Config(**{key: other}), Config()) == {}


def test_a_configuration_cannot_be_changed_in_place() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().epochs = 3


def test_the_defaults_are_the_papers() -> None:
    config = Config()
    assert (config.num_prototypes, config.block_size, config.batch_size) == (65_536, 512, 4096)
    assert (config.lr, config.teacher_momentum, config.weight_decay[0]) == ((0.6, 0.006), (0.99, 1.0), 1e-6)
    assert (config.encoder, config.projector_hidden, config.embedding) == ("resnet50", 2048, 256)
    assert config.base_lr == pytest.approx(0.6 * 16)
    assert not config.siamese
    assert Config(teacher_momentum=0).siamese


def test_values_that_contradict_each_other_are_refused() -> None:
    for values, words in [
        ({"global_scale": [0.5, 0.2]}, ["global_scale", "0.5", "0.2"]),
        ({"micro_batch": 1365}, ["micro_batch", "4096", "1365"]),
        ({"warmup_epochs": 100}, ["warmup_epochs", "epochs", "100"]),
        ({"encoder_statistics": "kept"}, ["encoder_statistics", "--from", "encoder_statistics=batch"]),
        ({"start_share": 0.5}, ["start_share=0.5", "--from", "start_share=0"]),
        ({"start_share": 0.5, "start": "a.pth", "teacher_momentum": 0}, ["start_share=0.5", "teacher_momentum"]),
        ({"start_share": 1.0, "start": "a.pth"}, ["start_share", "less than 1"]),
    ]:
        with pytest.raises(ConfigError) as raised:
            resolve(values, num_images=10_000)
        for word in words:
            assert word in str(raised.value)


def test_several_mistakes_are_all_told_on_one_line() -> None:
    with pytest.raises(ConfigError) as raised:
        resolve({"epochs": -1, "flip": 2, "bathc_size": 3}, num_images=10)
    message = str(raised.value)
    assert "\n" not in message
    for word in ("epochs", "-1", "flip", "received 2", "bathc_size", "Did you mean 'batch_size'?"):
        assert word in message


def test_auto_workers_are_one_per_core_that_may_be_used() -> None:
    config = resolve({"workers": "auto"}, num_images=64)
    assert config.workers == available_cores()


def test_only_half_precision_is_half() -> None:
    assert [Config(precision=name).half for name in ("fp32", "tf32", "bf16", "fp16")] == [False, False, True, True]
