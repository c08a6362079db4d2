"""Tutorial 3, OffloadModel, with the names that it leaves open filled in.

    python examples/tutorials/offload.py
    loss 2.3x -> 0.x, 3 slices in 3 slots

Computes on a GPU if there is one. As in the tutorial, the loop calls the wrapped ``model`` itself, and backward
stands within autocast.
"""

import argparse
import time

import torch

from fairshard.experimental.nn.offload import OffloadModel

num_inputs = 8
num_outputs = 8
num_hidden = 32
num_layers = 2
batch_size = 8


def make_dataloader() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pictures of one channel, noisy copies of a random one for each class."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(num_outputs, 1, num_inputs, num_inputs, generator=generator)
    batches = []
    for _ in range(100):
        target = torch.randint(num_outputs, (batch_size,), generator=generator)
        batches.append((patterns[target] + 0.2 * torch.randn(batch_size, 1, 8, 8, generator=generator), target))
    return batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    epochs = parser.parse_args().epochs
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataloader = make_dataloader()

    model = torch.nn.Sequential(
        torch.nn.Linear(num_inputs * num_inputs, num_hidden),
        *([torch.nn.Linear(num_hidden, num_hidden) for _ in range(num_layers)]),
        torch.nn.Linear(num_hidden, num_outputs),
    )

    offload_model = OffloadModel(
        model=model,
        device=device,
        offload_device=torch.device("cpu"),
        num_slices=3,
        checkpoint_activation=True,
        num_microbatches=1,
    )

    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(offload_model.parameters(), lr=0.05)

    losses = []
    start = time.time_ns()
    offload_model.train()
    for _ in range(epochs):
        for batch_inputs, batch_outputs in dataloader:
            batch_inputs, batch_outputs = batch_inputs.to(device), batch_outputs.to(device)
            optimizer.zero_grad()
            inputs = batch_inputs.reshape(-1, num_inputs * num_inputs)
            with torch.autocast(device.type):
                output = model(inputs)
                loss = criterion(output, target=batch_outputs)
                loss.backward()
            optimizer.step()
            losses.append(loss.item())

    report = offload_model.report()
    seconds = (time.time_ns() - start) / 1e9
    print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}, {report['slices']} slices in {report['slots']} slots")
    print(f"{len(losses) / seconds:.0f} steps a second, {report['bytes_in']} bytes to the device in each")


if __name__ == "__main__":
    main()
