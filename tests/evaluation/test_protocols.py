"""The contract of protocols: they register themselves, their settings are checked once, and nobody else names them."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import carp
from carp.cli.protocol_options import written
from carp.config.recipe import parse_overrides
from carp.errors import ConfigError
from carp.evaluation.protocol import AnyProtocol, Settings
from carp.evaluation.protocols import all_protocols, find_protocol, protocol_of_result

SOURCE = Path(carp.__file__).parent
PROTOCOLS = [protocol for protocol in all_protocols() if protocol.__module__.startswith("carp.")]


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_a_protocol_describes_itself(protocol: type[AnyProtocol]) -> None:
    assert find_protocol(protocol.name) is protocol
    assert protocol.summary.endswith(".")
    for key, field in protocol.settings_type.model_fields.items():
        assert (field.description or "").endswith("."), key


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_a_default_is_accepted_as_it_is_written(protocol: type[AnyProtocol]) -> None:
    fields = protocol.settings_type.model_fields
    shown = {key: "None" if field.default is None else written(field.default) for key, field in fields.items()}
    assert protocol.settings_type(**shown) == protocol.settings_type()
    words = [f"{key}={value}" for key, value in shown.items()]
    assert protocol.settings_type(**parse_overrides(words)) == protocol.settings_type()


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_the_documentation_lists_the_same_settings(protocol: type[AnyProtocol]) -> None:
    text = (Path(__file__).parents[2] / "docs/protocols.md").read_text()
    row = re.search(rf"^\| {protocol.name} \| (`.*`) \|$", text, re.MULTILINE)
    assert row is not None
    assert re.findall(r"`(\w+)`", row[1]) == list(protocol.settings_type.model_fields)


def test_protocols_import_without_torch() -> None:
    code = "import sys, carp.evaluation.protocols as p; p.all_protocols(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_misspelt_protocol_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no protocol 'kmean'\. Did you mean 'kmeans'\?"):
        find_protocol("kmean")


def test_a_former_name_of_result_files() -> None:
    found = protocol_of_result("copy-detection")
    assert found is not None
    assert found.name == "copies"
    assert protocol_of_result("of a later version") is None


def settings_of(name: str) -> type[Settings]:
    return find_protocol(name).settings_type


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("knn", {"k": 20}, (20,)),
        ("knn", {"k": "10,20"}, (10, 20)),
        ("knn", {"k": "[10, 20]"}, (10, 20)),
        ("knn", {"k": range(1, 3)}, (1, 2)),
        ("few-shot", {"shots": "1,full"}, (1, "full")),
        ("few-shot", {"shots": "full"}, ("full",)),
        ("linear", {"lrs": "1e-3"}, (0.001,)),
        ("linear", {"cached": "true"}, True),
        ("copies", {"depth": "None"}, None),
        ("copies", {"depth": "null"}, None),
        ("retrieval", {"boxes": None}, None),
        ("detection", {"test": "2007:val,2012:val"}, ("2007:val", "2012:val")),
    ],
)
def test_values_may_be_text_and_one_value_is_a_list(name: str, given: dict[str, Any], expected: object) -> None:
    (key,) = given
    assert getattr(settings_of(name)(**given), key) == expected


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("knn", {"k": 0}, "k must be greater than or equal to 1, received 0"),
    ("knn", {"k": ()}, "k .*at least 1 item"),
    ("knn", {"temperature": 0}, "temperature must be greater than 0, received 0"),
    ("knn", {"temperature": "warm"}, "temperature must be a valid number.* received 'warm'"),
    ("knn", {"temperatur": 1}, "no setting 'temperatur'. Did you mean 'temperature'.*k, temperature"),
    ("kmeans", {"redos": 0}, "redos must be .* 1, received 0"),
    ("kmeans", {"images_per_cluster": 0}, "images_per_cluster must be .* 1, received 0"),
    ("kmeans", {"seeds": ()}, "seeds .*at least 1 item"),
    ("few-shot", {"shots": (1, 0)}, "shots must be .* 1, received 0"),
    ("few-shot", {"shots": ("all",)}, "shots must be .*received 'all'"),
    ("few-shot", {"runs": 0}, "runs must be .* 1, received 0"),
    ("linear", {"optimisers": ("adam",)}, "optimisers must be 'sgd' or 'lars', received 'adam'"),
    ("linear", {"lrs": (-1,)}, "lrs must be greater than 0, received -1"),
    ("linear", {"lrs": ()}, "lrs .*at least 1 item"),
    ("linear", {"held_out": 1}, "held_out must be less than 1, received 1"),
    ("linear", {"epochs": 0}, "epochs must be .* 1, received 0"),
    ("retrieval", {"k": (0,)}, "k must be .* 1, received 0"),
    ("copies", {"depth": 0}, "depth must be .* 1, received 0"),
    ("copies", {"side": 0}, "side must be .* 1, received 0"),
    ("detection", {"trials": 0}, "trials must be greater than 0, received 0"),
    ("detection", {"lr_drops": [18_000]}, "lr_drops must be less than or equal to 1, received 18000"),
]


@pytest.mark.parametrize(("name", "settings", "message"), MISTAKES, ids=[f"{n} {s}" for n, s, _ in MISTAKES])
def test_a_bad_setting_is_one_line_with_its_name_and_value(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        settings_of(name)(**settings)
    assert "\n" not in str(caught.value)


# Where text that is equal to the name of a protocol means something else, or calls a protocol as a user would
OTHER_MEANINGS = {
    r"commands/(demo|ablate).py": ("knn",),  # call `evaluate`
    r"report/tables/paper.py": ("knn",),  # the measure of the paper's ablations
    r"report/study_plot.py|studies/ablations.py": ("linear",),  # the scale of an axis
    r"report/weights_list.py": ("knn", "linear"),  # columns of the paper's tables
    r".*/paper_datasets.py": (
        "knn",
        "kmeans",
        "linear",
        "few-shot",
        "retrieval",
        "copies",
    ),  # the paper's tables that show a dataset
    r"training/course.py|report/plots.py|advice/encoder_probes.py": ("knn",),  # accuracies without a protocol
    r"config/\w+.py|evaluation/linear/\w+.py": ("linear",),  # how the learning rate scales with the batch
    r"evaluation/few_shot/classifiers.py": ("linear",),  # the kind of classifier, in result files
    r".*/\w*(attack|cop(y|ies))\w*.py": ("copies",),  # altered or duplicate images, in manifests and counts
}


def texts(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield path.relative_to(SOURCE).as_posix(), node.value


def test_no_protocol_is_named_outside_its_own_file() -> None:
    """Code elsewhere learns names from the registry; kernels such as `knn_accuracy`, which training uses, are free."""
    names = {name for protocol in PROTOCOLS for name in (protocol.name, *protocol.former_names)}
    own = SOURCE / "evaluation" / "protocols"
    files = [path for path in SOURCE.rglob("*.py") if own not in path.parents]
    assert len(files) > 100
    found = {(file, text) for path in files for file, text in texts(path) if text in names}
    allowed = {
        (file, text)
        for file, text in found
        for pattern, meant in OTHER_MEANINGS.items()
        if re.fullmatch(pattern, file) and text in meant
    }
    assert found - allowed == set()


def test_protocols_do_not_name_each_other() -> None:
    names = {protocol.name for protocol in PROTOCOLS}
    for protocol in PROTOCOLS:
        path = SOURCE.parent / f"{protocol.__module__.replace('.', '/')}.py"
        assert {text for _, text in texts(path) if text in names} <= {protocol.name}
