"""examples/integrations/ray_train.py goes on when Ray loses a worker. By `make test-ray`: Ray takes 500 MB."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_killed_worker(tmp_path):
    variables = {
        "PYTHONPATH": str(ROOT / "python"),
        "HOME": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }  # Ray writes to HOME
    result = subprocess.run(
        [sys.executable, ROOT / "examples/integrations/ray_train.py", "--kill-at=25"],
        env=os.environ | variables | {"RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    loss = re.search(r"started at step 20, loss (\S+)", result.stdout).group(1)  # saved at 20, killed at 25
    assert float(loss) < 0.1
