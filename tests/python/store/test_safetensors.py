"""Our reader and writer against the package that defines the format."""

import pytest
import torch
from safetensors.torch import load_file, safe_open, save_file

from fairshard._core import store

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
]


def _tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    result = {"none": torch.empty(0, 3), "scalar": torch.tensor(2.5), "näme/with.dots": torch.ones(2, 1, 3)}
    for dtype in DTYPES:
        size = torch.empty(0, dtype=dtype).element_size()
        bits = torch.randint(0, 2, (3, 5 * size), dtype=torch.uint8, generator=generator)
        result[str(dtype)] = bits.view(dtype) if dtype != torch.bool else bits.bool()
    return result


def _assert_same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    assert bytes(ours.flatten().view(torch.uint8).tolist()) == bytes(theirs.flatten().view(torch.uint8).tolist())


def test_the_package_reads_what_we_write(tmp_path):
    tensors = _tensors()
    path = str(tmp_path / "ours.safetensors")
    store.write_safetensors(path, tensors, {"format": "pt", "key": "väl\nue"})
    read = load_file(path)
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        _assert_same(read[name], tensor)
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt", "key": "väl\nue"}


def test_we_read_what_the_package_writes(tmp_path):
    tensors = _tensors()
    path = str(tmp_path / "theirs.safetensors")
    save_file(tensors, path, {"a": "b"})
    file = store.SafetensorsFile(path)
    assert file.metadata == {"a": "b"}
    assert sorted(file.names) == sorted(tensors)
    for name, tensor in tensors.items():
        _assert_same(file.read(name), tensor)


def test_a_truncated_file_is_refused_by_name(tmp_path):
    path = tmp_path / "f.safetensors"
    save_file({"a": torch.arange(4)}, path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises((ValueError, RuntimeError), match=r"f\.safetensors"):
            store.SafetensorsFile(str(path))
