"""torch.distributed.checkpoint and ours: each loads what the other has saved, on two ranks and then on three."""

import pytest
import torch
import torch.distributed.checkpoint.state_dict as torch_states
from torch.distributed import checkpoint as dcp

from fairshard.checkpoint import Checkpoint
from fairshard.checkpoint.dcp import StorageReader, StorageWriter, get_state_dict, set_state_dict
from fairshard.optim._shards import boxes
from support.models import mlp
from support.parallel import assert_same, ddp, sharded, train, whole

ADAMW = torch.optim.AdamW
#: Beside gradients: all that a rank has between steps is its own part; and DDP's gradients.
MODES_SAVED = ("all", "optimizer")
LOADED_BY = ({"partition": "even"}, {"partition": "tensor"}, {"mode": "release_parameters+overlap_gather"})


def conv_net(seed=0):
    """With a parameter that does not lie in memory row by row."""
    model = torch.nn.Sequential(mlp(seed), torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last))
    model.forward = lambda x: model[0](x) + model[1].weight.square().sum() + model[1].bias.sum()
    return model


def trained(rank, seed=0, steps=(), mode="gradients", **options):
    pair = sharded(conv_net(seed), mode, ADAMW, lr=1e-2, **options)
    train(*pair, rank, steps)
    return pair


def named(model, optimizer, getter=get_state_dict):
    model_state, optimizer_state = getter(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def load(reader, model, optimizer):
    state = named(model, optimizer)
    dcp.load(state, storage_reader=reader)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def contents(model, optimizer):
    optimizer.consolidate_state_dict(-1)
    return whole(model), optimizer.state_dict()["state"]


def _save(rank, world_size, folder):
    model, optimizer = trained(rank, steps=(0, 1, 2), partition="even")
    dcp.save(named(model, optimizer), checkpoint_id=f"{folder}/torch")
    dcp.save(named(model, optimizer), storage_writer=StorageWriter(f"{folder}/written", step=3))
    with Checkpoint(f"{folder}/ours", {"model": model, "optimizer": optimizer}) as checkpoint:
        checkpoint.save(3)
    refused = pytest.raises(TypeError, match="this rank has only a part of the optimizer's state")
    with refused:
        next(iter(named(model, optimizer)["optimizer"]["state"].values()))["exp_avg"].sum()
    with refused:
        dcp.async_save(named(model, optimizer), checkpoint_id=f"{folder}/never")
    for mode in MODES_SAVED:
        pair = trained(rank, steps=(0, 1, 2), mode=mode)
        dcp.save(named(*pair), checkpoint_id=f"{folder}/{mode}")
    return contents(model, optimizer)


def _load(rank, world_size, folder, expected):
    def check(model, optimizer, what):
        for ours, theirs in zip(contents(model, optimizer), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, msg=lambda m: f"{what}: {m}")

    readers = {
        "torch": dcp.FileSystemReader(f"{folder}/torch"),
        "written": StorageReader(f"{folder}/written/step-00000003"),
        "ours": StorageReader(f"{folder}/ours/step-00000003"),
    }
    readers |= {mode: dcp.FileSystemReader(f"{folder}/{mode}") for mode in MODES_SAVED}
    for what, reader in readers.items():
        for options in LOADED_BY:
            pair = trained(rank, seed=5, **options)
            load(reader, *pair)
            check(*pair, (what, options))
    loaded = trained(rank, seed=5)
    with Checkpoint(f"{folder}/written", {"model": loaded[0], "optimizer": loaded[1]}) as checkpoint:
        checkpoint.load()
    check(*loaded, "StorageWriter to Checkpoint")

    # a plain model and optimizer by torch's own functions: from ours, and back
    plain = ddp(conv_net(5), ADAMW, lr=1e-2)
    state = named(*plain, torch_states.get_state_dict)
    dcp.load(state, checkpoint_id=f"{folder}/torch")
    torch_states.set_state_dict(*plain, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    dcp.save(named(*plain, torch_states.get_state_dict), checkpoint_id=f"{folder}/plain")
    pair = trained(rank, seed=5)
    load(dcp.FileSystemReader(f"{folder}/plain"), *pair)
    check(*pair, "DDP")
    # and both go on alike
    train(*plain, rank, (3, 4))
    train(*pair, rank, (3, 4))
    assert_same(pair[0], plain[0], "after DDP's", rounded=True)
    # asking an optimizer that has not stepped has changed nothing
    asked, fresh = trained(rank, seed=1), trained(rank, seed=1)
    get_state_dict(*asked)
    for each in (asked, fresh):
        train(*each, rank, (0, 1))
    assert_same(asked[0], fresh[0], "asked before the first step")
    return True


@pytest.mark.costly
def test_each_loads_what_the_other_has_saved(run_ranks, tmp_path):
    expected = run_ranks(2, _save, str(tmp_path))[0]
    assert all(run_ranks(3, _load, str(tmp_path), expected))


def test_ranges_are_boxes():
    whole_tensor = torch.arange(60).view(3, 4, 5)
    for begin in range(60):
        for end in range(begin, 61):
            found = [
                whole_tensor[tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))].reshape(-1)
                for offsets, sizes in boxes((3, 4, 5), begin, end)
            ]
            assert len(found) <= 5
            assert torch.cat([torch.empty(0, dtype=torch.long), *found]).tolist() == list(range(begin, end))
    assert list(boxes((), 0, 1)) == [((), ())]
