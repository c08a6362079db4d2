"""A batch eight times as large, with AdaScale and with a learning rate eight times as large, on real data.

    python benchmarks/adascale_digits.py       # needs scikit-learn, which brings the data

Digits of 8 x 8 pixels, a small network, SGD and a rate that falls in steps. The parts of a
batch are backward passes of one process; ranks would give the same gains (the tests show it). With
AdaScale, the schedule follows ``effective_steps()``, and training ends when they are as many as the steps of the
small batch. Accuracies are on a fifth of the data that is not trained on.
"""

import argparse
import json
import statistics
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

from fairshard.optim import AdaScale

BATCH, STEPS, SCALE = 16, 1600, 8
MILESTONES = (800, 1200)


def data() -> tuple[torch.Tensor, ...]:
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    test = len(x) // 5
    return x[order[test:]], y[order[test:]], x[order[:test]], y[order[:test]]


def fall_at(step: float) -> float:
    """What the rate is multiplied by after so many steps of batches of one part."""
    return 0.1 ** sum(step >= milestone for milestone in MILESTONES)


def train(kind: str, seed: int, rate: float, momentum: float) -> tuple[int, float]:
    """Returns the number of steps and the accuracy in per cent."""
    x, y, test_x, test_y = data()
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum, weight_decay=1e-4)
    parts = 1 if kind == "S = 1" else SCALE
    if kind == "S = 8, AdaScale":
        optimizer = AdaScale(optimizer, num_gradients_to_accumulate=parts)
    done, steps = 0.0, 0
    while done < STEPS:
        optimizer.zero_grad()
        for _ in range(parts):
            chosen = torch.randint(len(x), (BATCH,))
            (nn.functional.cross_entropy(model(x[chosen]), y[chosen]) / parts).backward()
        optimizer.param_groups[0]["lr"] = rate * fall_at(done) * (parts if kind == "S = 8, linear" else 1)
        optimizer.step()
        steps += 1
        done = optimizer.effective_steps() if isinstance(optimizer, AdaScale) else steps * parts
    with torch.no_grad():
        return steps, 100 * (model(test_x).argmax(1) == test_y).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    for kind in ("S = 1", "S = 8, AdaScale", "S = 8, linear"):
        runs = [train(kind, seed, options.rate, options.momentum) for seed in range(options.seeds)]
        results[kind] = {"steps": [steps for steps, _ in runs], "accuracy": [round(a, 2) for _, a in runs]}
        mean = statistics.mean(accuracy for _, accuracy in runs)
        print(f"{kind:16s} {mean:6.2f} %  {[round(a, 2) for _, a in runs]}  {[s for s, _ in runs]} steps")
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
