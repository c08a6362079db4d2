"""All ranks load, or none does."""

import pytest
import torch

from fairshard.checkpoint import Checkpoint, Rng, latest


def _load_damaged(rank, world_size, folder):
    run = {"epoch": 3}
    parts = {"rng": Rng(), "run": run}
    checkpoint = Checkpoint(folder, parts, timeout_s=20)
    checkpoint.save(1)
    torch.distributed.barrier()
    if rank == 1:
        (shard,) = (file for file in (folder / "step-00000001").iterdir() if file.name.startswith("shard-00001"))
        data = bytearray(shard.read_bytes())
        data[-100] ^= 0x55
        shard.write_bytes(data)
    torch.distributed.barrier()
    run["epoch"] = -1
    with pytest.raises((RuntimeError, ValueError), match="is damaged"):
        checkpoint.load()
    assert run["epoch"] == -1
    missing = folder / ("step-00000001" if rank == 0 else "not-mounted")
    with pytest.raises((RuntimeError, ValueError), match=r"not-mounted/manifest.json"):
        checkpoint.load(missing)


def test_what_one_rank_cannot_read_is_loaded_by_none(run_ranks, tmp_path):
    run_ranks(2, _load_damaged, tmp_path)


def test_folders_of_which_none_can_be_used_are_refused(tmp_path):
    checkpoint = Checkpoint(tmp_path, {"a": torch.ones(2)})
    checkpoint.save(1)
    (tmp_path / "step-00000001/manifest.json").write_text("{}")
    for look in (checkpoint.load, lambda: latest(tmp_path)):
        with pytest.raises(ValueError, match="none of them can be used"):
            look()


def _save_other_parts(rank, world_size, folder):
    parts = {"run": {"epoch": 3}} | ({"own": {"note": "of rank 1"}} if rank == 1 else {})
    with pytest.raises(
        (RuntimeError, ValueError), match=r'rank 1 saves the parts \["run","own"\], but rank 0 \["run"\]'
    ):
        Checkpoint(folder, parts, timeout_s=20).save(1)
    torch.distributed.barrier()
    assert latest(folder) is None


def test_a_part_that_only_one_rank_has_is_not_lost_without_a_word(run_ranks, tmp_path):
    run_ranks(2, _save_other_parts, tmp_path)
