"""What is trained: models that return their loss, and for each rank inputs that are the same for every system."""

from pathlib import Path

import torch
from torch import nn

import convnet
import gpt

LENGTH = 64
IMAGE = 32


def make_model(name: str, length: int = LENGTH) -> nn.Module:
    torch.manual_seed(0)
    return convnet.ConvNet(name) if name in convnet.SIZES else gpt.Gpt(name, length)


def make_inputs(name: str, batch: int, rank: int, length: int = LENGTH) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1 + rank)
    if name in convnet.SIZES:
        images = torch.randn(batch, 3, IMAGE, IMAGE, generator=generator)
        return images, torch.randint(convnet.CLASSES, (batch,), generator=generator)
    vocabulary = gpt.VOCABULARIES.get(name, gpt.BYTES)
    return (torch.randint(vocabulary, (batch, length + 1), generator=generator),)


def write_for_cpp(name: str, batch: int, ranks: int, path: Path) -> None:
    """A GPT's first weights and every rank's text, for the program in C++."""
    from safetensors.torch import save_file

    tensors = {key: value.detach() for key, value in make_model(name).named_parameters()}
    tensors |= {f"text.{rank}": make_inputs(name, batch, rank)[0] for rank in range(ranks)}
    width, layers, heads = gpt.SIZES[name]
    sizes = {"width": width, "layers": layers, "heads": heads, "length": LENGTH}
    save_file(tensors, path, metadata={key: str(value) for key, value in sizes.items()})
