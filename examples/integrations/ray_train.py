"""Training by Ray Train that goes on when a worker is lost: the ranks start anew and load the newest checkpoint.

    python ray_train.py [--kill-at STEP]

Ray connects the ranks; they shard optimizer state and gradients, and write checkpoints to a folder that all see. With
--kill-at rank 1 is killed in that step, once. Prints "started at step 20, loss 0.001" at the end.
"""

import argparse
import os
import signal
import tempfile
from pathlib import Path

import ray
import torch
from ray import train
from ray.train.torch import TorchTrainer

from fairshard.checkpoint import Checkpoint
from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS


def train_loop(config):
    rank = train.get_context().get_world_rank()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(10, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = OSS(model.parameters(), torch.optim.AdamW, lr=0.02)
    parallel = ShardedDataParallel(model, optimizer)
    killed = Path(config["folder"]) / "killed"
    with Checkpoint(f"{config['folder']}/checkpoints", {"model": model, "optimizer": optimizer}, keep=2) as checkpoint:
        report = checkpoint.load()  # the newest complete one; None if there is none
        first = report.step if report else 0
        for step in range(first, 60):
            inputs = torch.randn(32, 10, generator=torch.Generator().manual_seed(2 * step + rank))
            optimizer.zero_grad()
            loss = (parallel(inputs) - inputs[:, :1]).square().mean()
            loss.backward()
            optimizer.step()
            if step + 1 == config["kill_at"] and rank == 1 and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if (step + 1) % 10 == 0:
                checkpoint.save(step + 1)
    if rank == 0:
        (Path(config["folder"]) / "result").write_text(f"started at step {first}, loss {loss.item():.2g}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kill-at", type=int, default=-1)
    arguments = parser.parse_args()
    # On this machine alone, with no port to the network.
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    with tempfile.TemporaryDirectory() as folder:
        trainer = TorchTrainer(
            train_loop,
            train_loop_config={"folder": folder, "kill_at": arguments.kill_at},
            scaling_config=train.ScalingConfig(num_workers=2),
            run_config=train.RunConfig(storage_path=folder, failure_config=train.FailureConfig(max_failures=1)),
        )
        trainer.fit()
        print((Path(folder) / "result").read_text())
    ray.shutdown()
