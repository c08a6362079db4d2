"""`make bench`: runs the benchmarks one after another, and then writes the pages of figures anew.

python benchmarks/run.py            # the main rows, under a quarter of an hour on two cores
python benchmarks/run.py --full     # every row
python benchmarks/run.py --gpu      # what needs a GPU
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
MAIN = [["sharded_training.py"], ["checkpoints.py", "--out"], ["growth.py"]]
FULL = [["sharded_training.py", "--full"], ["checkpoints.py", "--out"], ["growth.py", "--full"]]
GPU = [["gpu_training.py"], ["offload_training.py"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--gpu", action="store_true")
    options = parser.parse_args()
    for program, *flags in GPU if options.gpu else FULL if options.full else MAIN:
        start = time.perf_counter()
        subprocess.run([sys.executable, HERE / program, *flags], check=True, cwd=HERE)
        print(f"{program}: {time.perf_counter() - start:.0f} s", flush=True)
    subprocess.run([sys.executable, HERE / "report.py"], check=True)


if __name__ == "__main__":
    main()
