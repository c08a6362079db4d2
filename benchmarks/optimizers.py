"""Python's fused AdamW beside the C++ ones: 200 tensors of 10,000 elements.

python benchmarks/optimizers.py      # runs build/bin/fairshard-bench-optimizers first
"""

import statistics
import subprocess
import time
from pathlib import Path

import torch


def main() -> None:
    program = Path(__file__).parents[1] / "build/bin/fairshard-bench-optimizers"
    subprocess.run([program], check=True)
    parameters = [torch.ones(10000) for _ in range(200)]
    for parameter in parameters:
        parameter.grad = torch.full((10000,), 0.1)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True)
    times = []
    for _ in range(100):
        start = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - start)
    print(f"Python, fused=True   {1e3 * statistics.median(times):7.3f} ms")


if __name__ == "__main__":
    main()
