"""Runs for a cluster: what is asked for, and the batch script, as far as a machine without SLURM allows."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from carp.commands.submit import Job, Resources, parameters, parse_resources, submit
from carp.errors import ConfigError
from tests.helpers import steps_of, tiny_images, write_images, write_recipe

SCRIPT = Path(__file__).parents[2] / "docs" / "train.sbatch"


def test_resources_are_key_value_words() -> None:
    found = parse_resources("nodes=2 tasks=8, hours=1.5 partition=gpu")
    assert found == Resources(nodes=2, tasks=8, hours=1.5, partition="gpu")
    asked = parameters(found, "large")
    assert asked["nodes"] == 2
    assert asked["tasks_per_node"] == asked["gpus_per_node"] == 8
    assert asked["timeout_min"] == 90
    assert asked["slurm_partition"] == "gpu"
    assert asked["slurm_additional_parameters"] == {"requeue": True}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("node=2", "received 'node=2'. Did you mean 'nodes'?"),
        ("nodes", "takes key=value words"),
        ("nodes=many", "nodes must be a number of at least 1, received 'many'"),
        ("tasks=0", "tasks must be a number of at least 1, received '0'"),
        ("cluster=moon", "cluster must be slurm or local, received 'moon'"),
    ],
)
def test_a_mistake_is_told(words: str, told: str) -> None:
    with pytest.raises(ConfigError) as mistake:
        parse_resources(words)
    assert told in str(mistake.value)


def test_without_slurm_the_error_says_so(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    with pytest.raises(ConfigError, match="could not be submitted to slurm"):
        submit(Job("images", tmp_path / "run", None, {}), Resources())


def test_a_job_asks_to_be_queued_again_as_it_was(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    job = Job("images", tmp_path / "run", "folder", {"epochs": 2})
    assert job.checkpoint().function is job


@pytest.mark.slow
def test_a_job_of_two_processes_runs_on_this_machine(tmp_path: Path) -> None:
    submitit = pytest.importorskip("submitit")
    images = write_images(tmp_path / "images", tiny_images())
    recipe = write_recipe(tmp_path / "tiny.yaml", epochs=1, sync_batch_norm=False)
    job = Job(str(images), tmp_path / "run", str(recipe), {})
    number = submit(job, parse_resources("cluster=local tasks=2 hours=1"))
    submitit.LocalJob(tmp_path / "run.jobs", number, tasks=[0, 1]).results()
    assert steps_of(tmp_path / "run") == [4]


def fake(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


def test_the_batch_script_is_right_for_bash_and_asks_to_be_requeued() -> None:
    subprocess.run(["bash", "-n", SCRIPT], check=True)
    text = SCRIPT.read_text()
    for line in ("#SBATCH --requeue", "#SBATCH --signal=B:TERM@120", '-m carp train "$@"'):
        assert line in text


@pytest.mark.parametrize("signalled", [True, False])
def test_the_batch_script_passes_a_signal_on_and_queues_again_only_then(tmp_path: Path, signalled: bool) -> None:
    """srun and scontrol are small scripts that write down what they are told."""
    log = tmp_path / "log"
    say = f'echo "scontrol $@" >> {log}'
    fake(tmp_path, "scontrol", f'if [ "$1" = show ]; then echo first; echo second; else {say}; fi')
    wait = "while true; do sleep 0.05; done" if signalled else "exit 3"
    fake(tmp_path, "srun", f'trap "echo saved >> {log}; exit 143" TERM; echo "srun $@" >> {log}; {wait}')
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "17",
        "SLURM_NNODES": "2",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_GPUS_ON_NODE": "4",
    }
    job = subprocess.Popen(["bash", SCRIPT, "IMAGES", "--out", "RUN"], env=environment)
    if signalled:
        end = time.monotonic() + 20
        while not (log.exists() and log.read_text()):
            assert time.monotonic() < end
            time.sleep(0.02)
        job.send_signal(signal.SIGTERM)
    assert job.wait(timeout=20) == (0 if signalled else 3)
    started, *rest = log.read_text().splitlines()
    assert "--nnodes=2 --nproc-per-node=4" in started
    assert "--rdzv-endpoint=first:29500 --rdzv-id=17 -m carp train IMAGES --out RUN" in started
    assert rest == (["saved", "scontrol requeue 17"] if signalled else [])


def test_procs_shows_in_help_and_refuses_none() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "carp", "train", "x", "--out", "y", "--procs", "0"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 2
    assert "--procs" in done.stderr
