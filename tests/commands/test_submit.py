"""Runs for a cluster: what is asked for, and the batch script, as far as a machine without SLURM allows."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from carp.commands.train import train
from carp.errors import ConfigError
from carp.runs.cluster import Job, Resources, parameters, parse_resources, submit
from carp.runs.metrics_log import read_metrics
from tests.commands.conftest import Cli, assert_one_line
from tests.helpers import assert_same_run, steps_of, tiny_images, write_images, write_recipe

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
        ("nodes", "takes key=value"),
        ("nodes=many", "nodes must be a whole number of at least 1, received 'many'"),
        ("tasks=0", "tasks must be a whole number of at least 1, received '0'"),
        ("tasks=1.5", "tasks must be a whole number of at least 1, received '1.5'"),
        ("hours=0.1", "hours must be a number of at least 1, received '0.1'"),
        ("cluster=moon", "cluster must be slurm or local, received 'moon'"),
    ],
)
def test_a_mistake_is_told(words: str, told: str) -> None:
    with pytest.raises(ConfigError) as mistake:
        parse_resources(words)
    assert told in str(mistake.value)


def test_without_slurm_the_error_says_so(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    if shutil.which("sbatch"):
        pytest.skip("there is SLURM here")
    with pytest.raises(ConfigError, match="could not be submitted to slurm"):
        submit(Job(list), tmp_path / "run", Resources())
    with pytest.raises(ConfigError, match="could not be submitted to local: LocalExecutor can use only one node"):
        submit(Job(list), tmp_path / "run", Resources(cluster="local", nodes=2))


def test_a_mistake_in_the_run_is_reported_before_it_is_queued(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    assert_one_line(
        cli("train", tmp_path / "nowhere", "--out", tmp_path / "run", "--submit", "cluster=local"), "nowhere"
    )
    assert not (tmp_path / "run.jobs").exists()


def test_a_job_asks_to_be_queued_again_unchanged() -> None:
    pytest.importorskip("submitit")
    job = Job(list)
    assert job.checkpoint().function is job


@pytest.mark.slow
def test_a_job_of_two_processes_runs_on_this_machine_and_is_queued_again_when_its_time_is_over(tmp_path: Path) -> None:
    """submitit's local cluster starts a job again as SLURM does; the signal is the one of a time limit."""
    pytest.importorskip("submitit")
    images = write_images(tmp_path / "images", tiny_images())
    recipe = write_recipe(tmp_path / "tiny.yaml", epochs=60, checkpoint_steps=1000, sync_batch_norm=False)
    for name in ("calm", "signalled"):
        job = Job(partial(train, str(images), tmp_path / name, str(recipe)))
        number = int(submit(job, tmp_path / name, parse_resources("cluster=local tasks=2 hours=1")))
        if name == "signalled":
            wait_until((tmp_path / "signalled" / "metrics.jsonl").exists)
            wait_until(lambda: read_metrics(tmp_path / "signalled" / "metrics.jsonl"))
            tasks = Path(f"/proc/{number}/task/{number}/children").read_text().split()
            os.kill(int(tasks[1]), signal.SIGUSR2)
        os.waitpid(number, 0)
        assert steps_of(tmp_path / name)[-1] == 240, said(tmp_path / f"{name}.jobs")
    words = said(tmp_path / "signalled.jobs")
    assert "stopped by SIGUSR2" not in words
    assert "Requeued job" in words
    (again,) = (line for line in words.splitlines() if "resuming at step" in line)
    assert "resuming at step 0 " not in again
    assert_same_run(tmp_path / "signalled", tmp_path / "calm")


def said(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.iterdir()) if path.suffix in {".out", ".err"})


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


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
        wait_until(lambda: log.exists() and log.read_text())
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
