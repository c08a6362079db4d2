"""A C++ module reads what the safetensors package and Hugging Face write, and they read what it writes."""

import json
import subprocess
from pathlib import Path

import huggingface_hub
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

PROGRAM = Path(__file__).parents[3] / "build/bin/safetensors_copy"


def weights():
    """As a model of transformers names them; the head is tied, and not in the file."""
    torch.manual_seed(3)
    layers = nn.ModuleDict(
        {"layers": nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), "embedding": nn.Embedding(5, 4)}
    )
    layers["layers"](torch.randn(6, 3))  # buffers that are not as they were made
    return {f"model.{name}": value.clone() for name, value in layers.state_dict().items()}


def copy(source, target, max_file_bytes=0, folder=None):
    command = [PROGRAM, source, target, str(max_file_bytes)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert value.dtype == theirs[name].dtype
        assert torch.equal(value, theirs[name]), name


def test_one_file(tmp_path):
    save_file(weights(), tmp_path / "in.safetensors", metadata={"format": "pt"})
    result = copy("in.safetensors", "out.safetensors", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert_same(load_file(tmp_path / "out.safetensors"), weights())
    with safe_open(tmp_path / "out.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}  # without it transformers refuses the file


def test_several_files_and_their_index(tmp_path):
    """Written by Hugging Face's own function, and read by it."""
    (tmp_path / "in").mkdir()
    huggingface_hub.save_torch_state_dict(weights(), tmp_path / "in", max_shard_size=70)
    assert (tmp_path / "in/model.safetensors.index.json").is_file()
    (tmp_path / "out").mkdir()
    result = copy("../in", "model.safetensors", 70, folder=tmp_path / "out")
    assert result.returncode == 0, result.stderr
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in weights().values())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    for name, value in weights().items():
        assert load_file(tmp_path / "out" / index["weight_map"][name])[name].equal(value)
    assert_same({k: v for f in files for k, v in load_file(tmp_path / "out" / f).items()}, weights())


def test_what_does_not_fit_is_one_line(tmp_path):
    others = weights()
    others["model.extra"] = others.pop("model.embedding.weight")
    save_file(others, tmp_path / "in.safetensors")
    result = copy(tmp_path / "in.safetensors", tmp_path / "out.safetensors")
    assert result.returncode == 1
    assert result.stderr == (
        f"safetensors_copy: {tmp_path}/in.safetensors does not fit the module:\n"
        "  missing: model.embedding.weight\n"
        "  unexpected: model.extra\n"
    )
    assert not (tmp_path / "out.safetensors").exists()
