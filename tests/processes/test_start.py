"""How processes of one run start and restart together: who lists the images, which checkpoint they resume from."""

import subprocess
import sys
from pathlib import Path

from tests.processes.conftest import ENVIRONMENT


def test_one_process_lists_the_images_and_all_resume_from_one_checkpoint(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.processes.start", str(tmp_path)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout
    passed = [line.removeprefix("passed: ") for line in done.stdout.splitlines() if line.startswith("passed: ")]
    assert passed == ["listing", "late", "invisible", "fixed", "refused", "failing"]
