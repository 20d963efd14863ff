"""Epochs over tar shards on a local disk and on a server of S3 on this machine (moto): warm, cold and no cache.

    python -m benchmarks.remote            # a table
    python -m benchmarks.remote --json     # the same, and a last line of JSON with the targets

An epoch reads, decodes and augments every photograph (500 × 375, drawn for the purpose) in one worker process; there is
no network to train, behind which reading could hide. The contenders take turns, and the best of several rounds counts.
A cold epoch includes the download of all shards; the index exists in every case. Without a cache, each image is one
range request. moto is written in Python: it is a test of CARP's part, not of the speed of an object store.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.shared import judged
from benchmarks.sources import best_of, write_photos
from carp.config import LoaderSettings, resolve_part
from carp.images.loading.loader import make_loader
from carp.images.open_source import open_source
from carp.images.source import Source

BUCKET = "photos"
SERVER = """
import sys, time
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def s3_server() -> Iterator[None]:
    """Start a server of S3 in a process of its own; `s3://` means it from then on."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    port = int(process.stdout.readline())
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{port}"
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def upload(shards: Path) -> None:
    """Copy the shards to a new bucket."""
    import s3fs

    files = s3fs.S3FileSystem()
    files.mkdir(BUCKET)
    for path in sorted(shards.glob("*.tar")):
        files.put_file(str(path), f"{BUCKET}/{path.name}")


def epoch(source: Source, settings: LoaderSettings) -> float:
    """Seconds of an epoch."""
    loader = make_loader(source, settings)
    start = time.perf_counter()
    for _ in loader.batches(0, loader.steps_per_epoch):
        pass
    return time.perf_counter() - start


def measure(scratch: Path, count: int, rounds: int) -> dict[str, float]:
    """Seconds of an epoch for every contender."""
    write_photos(scratch / "photos", count)
    shards, cache = scratch / "photos" / "shards", scratch / "cache"
    upload(shards)
    os.environ["CARP_CACHE"] = str(cache)
    settings = resolve_part(LoaderSettings, {"batch_size": 50, "workers": 1}, num_images=count)
    local, warm, ranges = (
        open_source(shards),
        open_source(f"s3://{BUCKET}/*.tar"),
        open_source(f"s3://{BUCKET}/*.tar", cache_gb=0),
    )
    assert local.fingerprint == warm.fingerprint == ranges.fingerprint

    def cold() -> None:
        shutil.rmtree(cache)
        epoch(warm, settings)

    contenders: dict[str, Callable[[], object]] = {
        "local shards": lambda: epoch(local, settings),
        "S3, cold cache": cold,
        "S3, warm cache": lambda: epoch(warm, settings),
    }
    seconds = best_of(rounds, contenders)
    shutil.rmtree(cache)
    return seconds | best_of(1, {"S3, no cache": lambda: epoch(ranges, settings)})


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--photos", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scratch", type=Path, help="folder for temporary files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as name, s3_server():
        seconds = measure(Path(name), arguments.photos, arguments.rounds)
    base = seconds["local shards"]
    print(f"| shards | seconds for {arguments.photos:,} photographs | ratio |\n| --- | --- | --- |")
    for contender, value in seconds.items():
        print(f"| {contender} | {value:.2f} | {value / base:.2f} |")
    if arguments.json:
        print(json.dumps({"warm / local": judged(seconds["S3, warm cache"] / base, 1.15, at_least=False)}))


if __name__ == "__main__":
    main()
