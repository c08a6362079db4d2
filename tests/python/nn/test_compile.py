"""torch.compile around a wrapper, around the module within, and of each block: as DDP, with no more graph breaks."""

import functools

import pytest
import torch
import torch._inductor.config
import torch.distributed as dist
import transformers
from torch.nn.parallel import DistributedDataParallel

from support.parallel import MODES, assert_same, sharded


def gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=64,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    )
    return transformers.GPT2Model(config)


def gpt2_of(compile_parts):
    model = gpt2()
    compile_parts(model)
    return model


def train(model, optimizer, rank, steps=3):
    for step in range(steps):
        tokens = torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(10 * rank + step))
        optimizer.zero_grad()
        model(input_ids=tokens).last_hidden_state.square().mean().backward()
        optimizer.step()


def with_ddp(model):
    return DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=0.1)


def breaks(make, rank, compile_parts, around=None):
    """Trains a compiled model; returns it, how often graphs were broken, and how many there are, of how many calls."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    parallel, optimizer = make(gpt2_of(compile_parts))
    train(torch.compile(parallel, backend=around) if around else parallel, optimizer, rank)
    counters = torch._dynamo.utils.counters
    assert counters["stats"]["unique_graphs"] > 0
    return parallel, sum(counters["graph_break"].values()), dict(counters["stats"])


def compile_blocks(model, backend="eager"):
    for block in model.h:
        block.compile(backend=backend, fullgraph=True)


def replace_blocks(model):
    model.h = torch.nn.ModuleList(torch.compile(block, backend="eager", fullgraph=True) for block in model.h)


#: Modes that have hooks between layers, which break graphs that are around them.
HOOKED = [mode for mode, options in MODES.items() if {"overlap_gather", "release_parameters"} & set(options or {})]
#: What is compiled within the wrapper and around it, and the modes that are tried; of blocks, inductor has all modes.
WAYS = {
    "around": (lambda model: None, "eager", [mode for mode in MODES if mode not in HOOKED] + ["all"]),
    "inside": (lambda model: model.compile(backend="eager"), None, list(MODES)),
    "blocks": (compile_blocks, None, ["all"]),
    "replaced blocks": (replace_blocks, None, ["all"]),
}


def trains_as_ddp(rank, what, parts, around, modes):
    theirs, most, graphs = breaks(with_ddp, rank, parts, around)
    assert most == 0 or "blocks" not in what
    for mode in modes:
        make = functools.partial(sharded, mode=mode, lr=0.1, bucket_bytes=20_000)
        ours, found, own_graphs = breaks(make, rank, parts, around)
        assert_same(ours, theirs, (what, mode))
        if not (around and mode in HOOKED):
            assert found <= most, (what, mode, found, most)
            assert own_graphs == graphs, (what, mode, own_graphs, graphs)


def _compiled(rank, world_size):
    for what, (parts, around, modes) in WAYS.items():
        trains_as_ddp(rank, what, parts, around, modes)
    return True


def _inductor(rank, world_size):
    # What vector instructions there are would be tried out by starting six interpreters, also where kernels are cached.
    torch._inductor.config.cpp.simdlen = 1
    compile_all = functools.partial(compile_blocks, backend="inductor")
    if rank == 0:  # the others find its kernels in the cache
        train(model := gpt2_of(compile_all), torch.optim.SGD(model.parameters(), lr=0.1), rank, 1)
    dist.barrier()
    trains_as_ddp(rank, "blocks by inductor", compile_all, None, MODES)
    return True


@pytest.mark.costly
@pytest.mark.cpu_only("graphs are the same wherever they run")
def test_graphs_are_as_whole_as_under_ddp(run_ranks):
    assert all(run_ranks(2, _compiled))


@pytest.mark.costly
@pytest.mark.cpu_only("inductor's kernels of a GPU are compiled elsewhere")
def test_inductor_compiles_whole_blocks(run_ranks):
    assert all(run_ranks(2, _inductor))
