"""Two "hosts": two network namespaces of this machine that reach each other over a virtual link only."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.conftest import ENVIRONMENT, distance, losses, torchrun

HOSTS = {"a": "10.200.0.1", "b": "10.200.0.2"}
SETUP = """
set -e
mount -t tmpfs none /run
mkdir -p /run/netns
ip netns add a
ip netns add b
ip link add to-b type veth peer name to-a
ip link set to-b netns a
ip link set to-a netns b
ip -n a addr add 10.200.0.1/24 dev to-b
ip -n b addr add 10.200.0.2/24 dev to-a
ip -n a link set lo up
ip -n b link set lo up
ip -n a link set to-b up
ip -n b link set to-a up
"""


def script(command: str) -> list[str]:
    return ["unshare", "--map-root-user", "--net", "--mount", "bash", "-c", SETUP + command]


@pytest.mark.slow
def test_a_run_over_two_hosts_ends_where_a_run_on_one_does(folder: Path, tmp_path: Path) -> None:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("there is no unshare or no ip command")
    tried = subprocess.run(script("true"), capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"network namespaces are not permitted: {tried.stderr.strip()}")
    train = f"-m carp train {folder / 'images'} --recipe {folder / 'tiny.yaml'} epochs=3 --out {tmp_path / 'two'}"
    starts = [
        f"GLOO_SOCKET_IFNAME=to-{'b' if host == 'a' else 'a'} ip netns exec {host} {sys.executable} "
        f"-m torch.distributed.run --nnodes=2 --nproc-per-node=1 --node-rank={number} --rdzv-backend=c10d "
        f"--rdzv-id=x --rdzv-endpoint=10.200.0.1:29511 --rdzv-conf=is_host={1 - number} --local-addr={address} {train}"
        for number, (host, address) in enumerate(HOSTS.items())
    ]
    done = subprocess.run(
        script(f"{starts[0]} & first=$!\n{starts[1]}\nwait $first"),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    words = ["-m", "carp", "train", folder / "images", "--recipe", folder / "tiny.yaml", "epochs=3", "--out"]
    code, output = torchrun(1, *words, tmp_path / "one")
    assert code == 0, output
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    assert distance(tmp_path / "two", tmp_path / "one") < 1e-5
