"""Protocols take features that are mapped from a file and larger than the memory they may use."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

_ALLOWED = 192  # MiB beyond what the imports took
_SCRIPT = """
import resource, sys
from pathlib import Path
import numpy as np
import sklearn.svm
from carp.evaluation.few_shot.few_labels import few_shot
from carp.evaluation.nearest_neighbours import knn
from carp.evaluation.linear.probe import linear_probe

mapped = np.load(sys.argv[1], mmap_mode="r")
labels = np.arange(len(mapped)) % 7
several = (np.arange(len(mapped))[:, None] % np.array([7, 11]) == 0).astype(np.int64)
taken = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))
limit = int(taken.split()[1]) * 1024 + int(sys.argv[2]) * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))  # counts what is allocated, not what is mapped to be read

one = {"optimisers": ("sgd",), "lrs": (0.1,), "weight_decays": (0,), "epochs": 1}
protocols = {
    "knn": lambda: knn(mapped, labels, mapped[:500], labels[:500], k=(10, 20)),
    "linear": lambda: linear_probe(mapped, labels, mapped, labels, **one),
    "few-shot": lambda: few_shot(mapped, labels, mapped, labels, shots=(16,), runs=1),
    "few-shot with several labels": lambda: few_shot(mapped, several, mapped, several, shots=(4,), runs=1),
    "copy": mapped.copy,
}
for name, run in protocols.items():
    try:
        run()
        print(name)
    except MemoryError:
        print(name, "needs more memory")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit of allocated memory is Linux's")
def test_mapped_features_are_not_copied(tmp_path: Path) -> None:
    part = np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32)
    np.save(tmp_path / "features.npy", np.tile(part, (64, 1)))  # 256 MiB
    command = [sys.executable, "-c", _SCRIPT, str(tmp_path / "features.npy"), str(_ALLOWED)]
    alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")  # threads allocate by themselves
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **alone})
    assert done.stdout.splitlines() == [
        "knn",
        "linear",
        "few-shot",
        "few-shot with several labels",
        "copy needs more memory",
    ], done.stderr
