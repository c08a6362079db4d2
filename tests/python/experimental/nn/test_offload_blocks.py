"""Which modules of a model are its blocks, and what a model may do with them itself."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fairshard.experimental.nn import OffloadModel
from support.offload import DEVICE, same

transformers = pytest.importorskip("transformers")

LAYERS = 3


class Stack(nn.Module):
    """Blocks in a container, which it may checkpoint itself."""

    def __init__(self, container=nn.ModuleList, checkpoints=None):
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3)) for _ in range(LAYERS)]
        self.body = nn.Module()
        self.body.h = container(*layers) if container is nn.Sequential else container(layers)
        self.head = nn.Linear(6, 2)
        self.checkpoints = checkpoints

    def forward(self, x):
        for layer in self.body.h:
            x = layer(x) if self.checkpoints is None else checkpoint(layer, x, use_reentrant=self.checkpoints)
        return self.head(torch.tanh(x))

    def greet(self, name):
        return f"{name}: {self(torch.ones(1, 6, device=DEVICE)).shape[-1]}"


def gpt2(**options):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=LAYERS, n_head=2, n_embd=16, vocab_size=19, n_positions=32, bos_token_id=0, eos_token_id=0, **options
    )
    return transformers.GPT2LMHeadModel(config)


def tokens():
    return torch.randint(19, (2, 7), generator=torch.Generator().manual_seed(1)).to(DEVICE)


def gradients(model):
    return [parameter.grad.cpu() for parameter in model.parameters()]


def trained(model, run, *arguments, **kwargs):
    torch.manual_seed(1)
    run(*arguments, **kwargs).square().mean().backward()
    return gradients(model)


# In a list, a Sequential is a block as any other module.
@pytest.mark.parametrize(
    ("container", "blocks"), [(nn.ModuleList, "body.h"), (nn.ModuleList, ["body.h"]), (nn.Sequential, "body.h")]
)
def test_a_container_stands_for_what_is_in_it(container, blocks):
    model = Stack(container)
    plain = copy.deepcopy(model).to(DEVICE)
    offload = OffloadModel(model, DEVICE, num_slices=LAYERS, blocks=blocks)
    x = torch.ones(4, 6, device=DEVICE)
    same(trained(model, offload, x), trained(plain, plain, x))
    assert offload.report()["slices"] == LAYERS


def test_one_block_by_its_name():
    offload = OffloadModel(Stack(), DEVICE, blocks="body.h.1")
    assert offload.report()["slices"] == 1


def test_blocks_that_cannot_run_are_refused():
    with pytest.raises(ValueError, match=r"'body' is a Module, which has no forward"):
        OffloadModel(Stack(), DEVICE, blocks=["body"])
    with pytest.raises(ValueError, match=r"no block 'boddy.h'; its children are: body, head"):
        OffloadModel(Stack(), DEVICE, blocks="boddy.h")
    with pytest.raises(ValueError, match=r"blocks is 3"):
        OffloadModel(Stack(), DEVICE, blocks=3)


def test_blocks_that_do_not_run_are_noticed():
    class Idle(Stack):
        def forward(self, x):
            return self.head(x)

    offload = OffloadModel(Idle(), DEVICE, blocks="body.h")
    with pytest.raises(RuntimeError, match="none of its 3 blocks has run"):
        offload(torch.ones(1, 6, device=DEVICE))


@pytest.mark.parametrize("activation", [False, True])
def test_a_model_that_checkpoints_its_blocks_itself(activation):
    """Once is enough: blocks that the model checkpoints are not checkpointed again."""
    model = Stack(checkpoints=False)
    plain = copy.deepcopy(model).to(DEVICE)
    offload = OffloadModel(model, DEVICE, num_slices=LAYERS, blocks="body.h", checkpoint_activation=activation)
    x = torch.ones(4, 6, device=DEVICE)
    for _ in range(2):
        same(trained(model, offload, x), trained(plain, plain, x))


@pytest.mark.parametrize("activation", [False, True])
def test_reentrant_checkpointing_is_refused_where_it_cannot_be(activation):
    """Its second run comes without a word, when a GPU has not the weights; on the CPU they are there anyway."""
    model = Stack(checkpoints=True)
    plain = copy.deepcopy(model).to(DEVICE)
    offload = OffloadModel(model, DEVICE, num_slices=LAYERS, blocks="body.h", checkpoint_activation=activation)
    x = torch.ones(4, 6, device=DEVICE, requires_grad=True)
    if DEVICE.type == "cpu":
        same(trained(model, offload, x), trained(plain, plain, x))
    else:
        with pytest.raises(RuntimeError, match="use_reentrant=False"):
            offload(x).sum().backward()


@pytest.mark.parametrize("activation", [False, True])
def test_gpt2_of_transformers(activation):
    model = gpt2()
    plain = copy.deepcopy(model).to(DEVICE)
    offload = OffloadModel(model, DEVICE, num_slices=LAYERS, blocks="transformer.h", checkpoint_activation=activation)
    batch = {"input_ids": tokens(), "labels": tokens(), "use_cache": not activation}
    for run in (plain, offload):
        torch.manual_seed(1)
        run(**batch).loss.backward()
    same(gradients(model), gradients(plain))
    if activation:
        with pytest.raises(RuntimeError, match=r"'transformer.h.0' was given a DynamicCache.*use_cache=False"):
            offload(**batch | {"use_cache": True})


@pytest.mark.parametrize("activation", [False, True])
def test_transformers_own_checkpointing(activation):
    model = gpt2()
    plain = copy.deepcopy(model).to(DEVICE)
    for each in (model, plain):
        each.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    offload = OffloadModel(model, DEVICE, num_slices=LAYERS, blocks="transformer.h", checkpoint_activation=activation)
    for run in (plain.train(), offload.train()):
        torch.manual_seed(1)
        run(input_ids=tokens(), labels=tokens()).loss.backward()
    same(gradients(model), gradients(plain))


def test_attributes_are_the_models():
    offload = OffloadModel(Stack(), DEVICE, blocks="body.h")
    assert offload.greet("hello") == "hello: 2"
    assert offload.head.out_features == 2
    with pytest.raises(AttributeError, match="surprise"):
        offload.surprise  # noqa: B018
    model = gpt2()
    plain = copy.deepcopy(model).to(DEVICE).eval()
    offload = OffloadModel(model, DEVICE, blocks="transformer.h", checkpoint_activation=True).eval()
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    assert offload.generate(tokens(), **options).tolist() == plain.generate(tokens(), **options).tolist()


def test_as_a_child_it_loads_what_it_gave():
    class Parent(nn.Module):
        def __init__(self, seed):
            super().__init__()
            torch.manual_seed(seed)
            self.paged = OffloadModel(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), DEVICE)
            self.rest = nn.Linear(2, 2)

    first, second = Parent(0), Parent(1)
    state = first.state_dict()
    assert "paged.0.weight" in state
    second.load_state_dict(state)
    assert all(torch.equal(state[key], value) for key, value in second.state_dict().items())
