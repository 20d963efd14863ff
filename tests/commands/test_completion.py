"""Completion: installed in a real shell, quick, and it knows commands, options, protocols, recipes and settings."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CARP = Path(sys.executable).with_name("carp")


def suggestions(words: str) -> list[str]:
    """What Tab suggests after `carp words`; the last word is the incomplete one."""
    all_words = ["carp", *words.split(" ")]
    variables = {
        "_CARP_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(all_words),
        "COMP_CWORD": str(len(all_words) - 1),
    }
    command = [sys.executable, "-X", "importtime", "-c", "from carp.cli import console; console()"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | variables)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "torch" not in imported, words
    assert "Traceback" not in done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("du", ["duplicates"]),
        ("data ch", ["check"]),
        ("train --dry", ["--dry-run"]),
        ("duplicates --rem", ["--remove-list"]),
        ("eval few", ["few-shot"]),
        ("train x --recipe cifar10-c", ["cifar10-cpu"]),
        ("recipes small", ["small-images"]),
        ("settings num_proto", ["num_prototypes"]),
        ("embed x --precision b", ["bf16"]),
        ("export x --format to", ["torchvision"]),
    ],
)
def test_tab_suggests(words: str, wanted: list[str]) -> None:
    assert suggestions(words) == wanted


def test_tab_suggests_settings_with_their_defaults() -> None:
    assert any(word.startswith("epochs=") for word in suggestions("train x epo"))
    assert any(word.startswith("k=") for word in suggestions("eval knn run k"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_shown_for_every_shell(shell: str) -> None:
    words = ["bash", "-c", f"'{CARP}' --show-completion {shell}; exit $?"]  # a shell must be there to be detected
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_CARP_COMPLETE" in done.stdout
    if found := shutil.which(shell):
        subprocess.run([found, "-n"], input=done.stdout, text=True, check=True)


def test_it_is_installed_in_bash(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": f"{CARP.parent}:{os.environ['PATH']}"}
    (tmp_path / ".bashrc").touch()

    def bash(script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["bash", "-ic", script], capture_output=True, text=True, env=environment, check=False)

    done = bash("carp --install-completion bash; exit $?")
    assert done.returncode == 0, done.stderr
    ask = 'COMP_WORDS=(carp ev) COMP_CWORD=1; _carp_completion carp; echo "${COMPREPLY[@]}"'
    done = bash(f"complete -p carp; {ask}")
    assert "_carp_completion" in done.stdout
    assert done.stdout.splitlines()[-1].strip() == "eval"
