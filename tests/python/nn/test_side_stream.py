"""Forward and backward on a CUDA stream of the user's own, with the step there or on the default one. Against DDP."""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
from support.models import inputs, loss_of, mlp, values

pytestmark = pytest.mark.nccl_only
OPTIONS = {"lr": 1e-2, "weight_decay": 0.1}
SETTINGS = ({}, {"overlap_gather": True}, {"step_in_backward": True}, {"release_parameters": True})


def train(model, optimizer, rank, side=None, step_on_side=False):
    main = torch.cuda.current_stream()
    side = side or main
    for step in range(6):
        side.wait_stream(main)
        with torch.cuda.stream(side):
            data = inputs(rank, step)
            torch.cuda._sleep(20_000_000)  # cycles: what does not wait for this stream is far ahead of it
            loss_of(model(data)).backward()
        with torch.cuda.stream(side if step_on_side else main):
            torch.cuda.current_stream().wait_stream(side)
            optimizer.step()
            optimizer.zero_grad()
        main.wait_stream(side)


def _side_stream(rank, world_size):
    plain = mlp()
    train(DistributedDataParallel(plain), torch.optim.AdamW(plain.parameters(), **OPTIONS), rank)
    for step_on_side in (False, True):
        for setting in (None, *SETTINGS):
            model = mlp()
            if setting is None:
                optimizer = torch.optim.AdamW(model.parameters(), **OPTIONS)
            else:
                optimizer = OSS(model.parameters(), torch.optim.AdamW, bucket_bytes=600, **OPTIONS, **setting)
            parallel = ShardedDataParallel(model)
            train(parallel, optimizer, rank, torch.cuda.Stream(), step_on_side)
            parallel.state_dict()  # waits for parameters that are still being gathered
            for ours, theirs in zip(values(model), values(plain), strict=True):
                torch.testing.assert_close(ours, theirs, msg=lambda m, at=(setting, step_on_side): f"{at}: {m}")


def test_trains_as_ddp_on_the_default_stream(run_ranks):
    run_ranks(2, _side_stream)
