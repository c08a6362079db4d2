"""What the program consolidates of a checkpoint is a model file for transformers."""

import pytest
import torch
import transformers
from safetensors.torch import load_file

from fairshard.checkpoint import Checkpoint
from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
from support.trainer import PROGRAM, run


def config():
    sizes = {"n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return transformers.GPT2Config(vocab_size=64, bos_token_id=0, eos_token_id=0, **sizes)


def _train_and_save(rank, world_size, folder):
    """A model whose head shares the embedding's weights, in shards of the least memory."""
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config()).eval()
    options = {"step_in_backward": True, "release_parameters": True, "bucket_bytes": 8000}
    optimizer = OSS(model.parameters(), torch.optim.AdamW, lr=1e-2, **options)
    parallel = ShardedDataParallel(model, optimizer)
    tokens = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(rank))
    for _ in range(2):
        optimizer.zero_grad()
        parallel(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    Checkpoint(f"{folder}/run", {"model": parallel, "optimizer": optimizer}).save(2)
    with torch.no_grad():
        return model(torch.arange(16)[None]).logits.tolist()


@pytest.mark.costly
def test_transformers_loads_a_consolidated_checkpoint(run_ranks, tmp_path):
    expected, *_ = run_ranks(2, _train_and_save, str(tmp_path))
    folder = tmp_path / "model"
    config().save_pretrained(folder)
    result = run(PROGRAM, "consolidate", tmp_path / "run", folder / "model.safetensors", "--part", "model")
    assert result.returncode == 0, result.stderr
    assert "optimizer" not in " ".join(load_file(folder / "model.safetensors"))
    model, found = transformers.GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    assert not any(found.values()), found
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(torch.arange(16)[None]).logits, torch.tensor(expected))
