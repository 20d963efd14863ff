"""No command uses the network unless it was asked to: real processes whose sockets are watched."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import carp
from carp.errors import ModelError
from carp.model.timm_options import ARCHITECTURE_OPTIONS, check_options, create_timm
from tests.commands.conftest import Cli, assert_one_line

# Runs before anything else in a Python process: writes down every attempt to reach another machine, and fails it
GUARD = """
import os, socket

def _note(what):
    with open(os.environ["NETWORK_LOG"], "a") as file:
        file.write(f"{what}\\n")
    raise OSError("no network here")

_connect = socket.socket.connect

def connect(self, address):
    if self.family == socket.AF_UNIX:
        return _connect(self, address)
    _note(f"connect {address}")

socket.socket.connect = connect
socket.socket.connect_ex = connect
socket.socket.sendto = lambda self, *rest: _note(f"sendto {rest[-1]}")
socket.getaddrinfo = lambda host, *rest, **more: _note(f"getaddrinfo {host}")
socket.gethostbyname = lambda host: _note(f"gethostbyname {host}")
socket.create_connection = lambda address, *rest, **more: _note(f"create_connection {address}")
"""
URL = "http://192.0.2.1/weights.pth"  # a network that does not exist
HOSTILE: dict[str, dict[str, Any]] = {
    "pretrained": {"pretrained": True},
    "a url": {"pretrained": True, "pretrained_cfg": {"url": URL}},
    "a url alone": {"pretrained_cfg": {"url": URL, "hf_hub_id": "stranger/model"}},
    "an overlay": {"pretrained": True, "pretrained_cfg_overlay": {"hf_hub_id": "stranger/model"}},
    "a path": {"checkpoint_path": "/etc/hostname"},
    "a cache": {"cache_dir": "/tmp/x"},
    "a file in the configuration": {"pretrained": True, "pretrained_cfg": {"file": "/etc/hostname"}},
}


@pytest.fixture
def guarded(tmp_path: Path) -> tuple[dict[str, str], Path]:
    """An environment whose Python processes are watched, and what they tried."""
    (tmp_path / "guard").mkdir()
    (tmp_path / "guard" / "sitecustomize.py").write_text(GUARD)
    log = tmp_path / "network.log"
    log.touch()
    path = os.pathsep.join([str(tmp_path / "guard"), *filter(None, sys.path)])
    offline = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return {**offline, "PYTHONPATH": path, "NETWORK_LOG": str(log), "COLUMNS": "200"}, log


def hostile_run(run: Path, target: Path, options: dict[str, Any]) -> Path:
    shutil.copytree(run, target, ignore=shutil.ignore_patterns("features", "results"))
    config = yaml.safe_load((target / "config.yaml").read_text())
    config["encoder_options"] = {**config["encoder_options"], **options}
    config["download"] = True
    (target / "config.yaml").write_text(yaml.safe_dump(config))
    return target


COMMANDS = """
import contextlib, io, json, sys
from carp.cli import main

ended = []
for words in json.load(sys.stdin):
    sys.argv, said = ["carp", *words], io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            main()
    except SystemExit as end:
        ended.append([end.code or 0, said.getvalue()])
print(json.dumps(ended))
"""


def carp_commands(environment: dict[str, str], *commands: tuple[object, ...]) -> list[tuple[int, str]]:
    """Commands one after the other in one watched process: exit codes and standard errors."""
    given = json.dumps([[str(word) for word in words] for words in commands])
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS], env=environment, input=given, capture_output=True, text=True, timeout=300,
        check=True,
    )  # fmt: skip
    return [(code, said) for code, said in json.loads(done.stdout.splitlines()[-1])]


def test_the_guard_sees_an_attempt(guarded: tuple[dict[str, str], Path]) -> None:
    environment, log = guarded
    fetch = f"import urllib.request; urllib.request.urlopen({URL!r})"
    done = subprocess.run([sys.executable, "-c", fetch], env=environment, capture_output=True, check=False)
    assert done.returncode != 0
    assert "192.0.2.1" in log.read_text()


def test_no_command_reaches_out(
    guarded: tuple[dict[str, str], Path], run: Path, labelled: Path, recipe: Path, tmp_path: Path
) -> None:
    """The whole way with a run of one's own, and then with a hostile one."""
    environment, log = guarded
    store, image = tmp_path / "store", next(labelled.rglob("*.png"))
    own = hostile_run(run, tmp_path / "own", {})  # its configuration asks to download, nothing else
    bad = hostile_run(run, tmp_path / "bad", HOSTILE["a url"])
    good = carp_commands(
        environment,
        ("embed", own, "--data", labelled, "--out", store),
        ("index", store),
        ("search", store / "index", image),
        ("eval", "knn", own, "--data", labelled),
        ("export", own, "--format", "safetensors", "--out", tmp_path / "a.safetensors"),
        ("train", labelled, "--recipe", recipe, "--out", tmp_path / "new"),
        ("embed", bad, "--data", labelled, "--out", tmp_path / "other"),
        ("eval", "knn", bad, "--data", labelled),
        ("export", bad, "--format", "safetensors", "--out", tmp_path / "b.safetensors"),
        ("train", labelled, "--recipe", bad / "config.yaml", "--out", tmp_path / "newer", "download=false"),
        ("search", store / "index", image, "--model", bad),
    )
    assert [code for code, _ in good] == [0] * 6 + [2] * 5, good
    for _, said in good[6:]:
        assert "must not contain 'pretrained" in said
        assert len(said.strip().splitlines()) == 1
    assert log.read_text() == ""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_no_system_call_reaches_out(
    guarded: tuple[dict[str, str], Path], run: Path, labelled: Path, tmp_path: Path
) -> None:
    """Below Python: whatever a library written in C would do."""
    environment, _ = guarded
    bad = hostile_run(run, tmp_path / "bad", HOSTILE["a url"])
    trace = tmp_path / "trace"
    command = [
        "strace",
        "-f",
        "-qq",
        "-e",
        "trace=connect,sendto,sendmsg",
        "-o",
        str(trace),
        sys.executable,
        "-m",
        "carp",
    ]
    words = ["embed", str(bad), "--data", str(labelled), "--out", str(tmp_path / "out")]
    done = subprocess.run([*command, *words], env=environment, capture_output=True, text=True, timeout=300, check=False)
    if not trace.exists() or "PTRACE" in done.stderr:
        pytest.skip(f"strace may not trace here: {done.stderr[:100]}")
    assert done.returncode == 2
    assert "must not contain 'pretrained" in done.stderr
    assert not [line for line in trace.read_text().splitlines() if "AF_INET" in line]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_run_is_refused_in_one_line(name: str, cli: Cli, run: Path, labelled: Path, tmp_path: Path) -> None:
    bad = hostile_run(run, tmp_path / "bad", HOSTILE[name])
    words = (next(iter(HOSTILE[name])), "must not contain", "Remove it from encoder_options")
    assert_one_line(cli("embed", bad, "--data", labelled, "--out", tmp_path / "out"), *words)


def test_a_hostile_export_reads_nothing(run: Path, labelled: Path, tmp_path: Path) -> None:
    """What a file says about its network may name no other weights either: they are dropped, and its own are used."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    path = tmp_path / "a.safetensors"
    carp.export(run, path, format="safetensors")
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["carp"])
    about["options"] |= HOSTILE["a url"]
    save_file(load_file(path), tmp_path / "b.safetensors", metadata={"carp": json.dumps(about)})
    images = np.zeros((2, 32, 32, 3), dtype=np.uint8)
    ours, theirs = (carp.load(file).embed(images) for file in (path, tmp_path / "b.safetensors"))
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "value", ["http://x/y", "/etc/passwd", "a:b", {"url": "http://x"}, [["a/b"]], object(), "x" * 99]
)
def test_values_are_plain(value: Any) -> None:
    with pytest.raises(ModelError, match="'act_layer' must be a number, a word"):
        check_options("resnet18", {"act_layer": value})


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet18", {"channels": [4, 4, 8, 8], "stem_type": "deep", "stem_width": 4, "drop_path_rate": 0.1}),
        (
            "resnet18",
            {"act_layer": "silu", "block_args": {"attn_layer": "se"}, "layers": [1, 1, 1, 1]},
        ),
        ("test_vit", {"img_size": 32, "patch_size": 8, "reg_tokens": 2, "global_pool": "avg", "init_values": None}),
        ("convnext_atto", {"depths": [1, 1, 1, 1], "dims": [4, 8, 8, 16], "use_grn": True}),
    ],
)
def test_options_that_describe_a_network_are_accepted(name: str, options: dict[str, Any]) -> None:
    assert create_timm(name, options) is not None


def test_nothing_that_reads_is_among_the_accepted() -> None:
    assert not [
        name for name in ARCHITECTURE_OPTIONS if "pretrained" in name or name.endswith(("_path", "_dir", "url"))
    ]
    reading = {
        "file",
        "model_cfg",
        "features_only",
        "scriptable",
        "weights",
        "num_classes",
        "in_chans",
        "device",
        "dtype",
    }
    assert not ARCHITECTURE_OPTIONS & reading
