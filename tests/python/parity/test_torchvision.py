"""Models of torchvision train as under DDP: BatchNorm's buffers, windows that are shifted, paths that are dropped."""

import pytest
import torch
import torchvision
from torch.nn.functional import cross_entropy

from support.parity import Case, differences

CLASSES = 7


def images(generator):
    return {"x": torch.randn(4, 3, 32, 32, generator=generator)}


def loss_of(outputs):
    return cross_entropy(outputs, torch.arange(len(outputs), device=outputs.device) % CLASSES)


SGD = {"optim": torch.optim.SGD, "options": {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4}}


def resnet18():
    return Case(lambda: torchvision.models.resnet18(num_classes=CLASSES), images, loss_of, bucket_bytes=2**22, **SGD)


def swin():
    """swin_t, with fewer and narrower stages."""

    def make():
        return torchvision.models.SwinTransformer(
            patch_size=[4, 4],
            embed_dim=16,
            depths=[2, 2],
            num_heads=[2, 4],
            window_size=[4, 4],
            stochastic_depth_prob=0.2,
            num_classes=CLASSES,
        )

    return Case(make, images, loss_of)


CASES = {"resnet18": resnet18, "swin": swin}


@pytest.mark.costly
@pytest.mark.cpu_only("kernels of these models sum in an order that changes")
def test_vision_models_train_as_under_ddp(run_ranks):
    for found in run_ranks(2, differences, CASES):
        assert not found, "\n".join(found)
