"""A result file is read as it was written, and everything else is told apart from it."""

import json
from pathlib import Path

import pytest

from carp.errors import DataError
from carp.evaluation.result import Result, read_result

FULL = Result(
    "few-shot",
    {"map_n1": 0.471},
    spread={"map_n1": 0.032},
    settings={"runs": 5},
    data={"name": "voc07"},
    model={"name": "carp", "hash": "0123456789abcdef", "branch": "teacher", "epochs": 400},
    versions={"carp": "0.1"},
)


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "results" / "few-shot.json"
    FULL.write(path)
    read = read_result(path)
    assert json.loads(path.read_text())["schema"] == 1
    assert read.created
    assert Result(**{**vars(read), "created": ""}) == FULL
    read.write(path)
    assert read_result(path).created == read.created, "a date is given once"


def test_files_without_a_schema_are_read() -> None:
    read = Result.from_json('{"protocol": "knn", "values": {"teacher": 0.5}, "settings": {"k": 20}}', "old.json")
    assert read == Result("knn", {"teacher": 0.5}, {"k": 20})


def test_keys_of_later_versions_are_left_out() -> None:
    text = json.dumps({**json.loads(FULL.to_json()), "more": 1})
    assert Result.from_json(text, "new.json") == FULL


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["not JSON", "carp eval"]),
        ('{"protocol": "knn", "values": {"teach', ["not JSON"]),
        ("[1, 2]", ["a list", "carp eval"]),
        ("3", ["a number"]),
        ('{"accuracy": 0.5}', ["no 'protocol'", "carp eval"]),
        ('{"protocol": "knn"}', ["no 'values'"]),
        ('{"protocol": 3, "values": {}}', ["'protocol' must be text", "a number"]),
        ('{"protocol": "knn", "values": [0.5]}', ["'values' must be an object", "a list"]),
        ('{"protocol": "knn", "values": {}, "model": "resnet"}', ["'model' must be an object", "text"]),
        ('{"protocol": "knn", "values": {"teacher": "high"}}', ["'teacher'", "finite number", '"high"']),
        ('{"protocol": "knn", "values": {"teacher": true}}', ["'teacher'", "true"]),
        ('{"protocol": "knn", "values": {"teacher": NaN}}', ["'teacher'", "NaN"]),
        ('{"schema": 2, "protocol": "knn", "values": {}}', ["schema 2", "reads schema 1", "Update"]),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(DataError) as error:
        read_result(path)
    for word in (str(path), *words):
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(DataError, match="not text"):
        read_result(path)
