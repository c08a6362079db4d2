"""C++ and Python have the same options with the same defaults, and where one has more, this file says so."""

import inspect
import re
from enum import Enum

import pytest
import torch

from fairshard.checkpoint import Checkpoint
from fairshard.experimental.nn import OffloadModel
from fairshard.experimental.nn.data_parallel import SlowMoDistributedDataParallel
from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS, AdaScale, AdaScaleWrapper, ShardedGradScaler
from support.pages import ROOT

_HEADERS = "\n".join(path.read_text() for path in sorted((ROOT / "include").rglob("*.h")))


class Tool:
    """``renamed``: Python's name -> C++'s. The others have no counterpart, because they are arguments there, or
    FairScale's; or because they are details that Python leaves to the core.
    """

    def __init__(self, python, structs, renamed=None, only_python="", only_cpp=""):
        self.python, self.structs, self.renamed = python, structs, renamed or {}
        self.only_python, self.only_cpp = set(only_python.split()), set(only_cpp.split())


_GAIN = {"num_gradients_to_accumulate": "accumulation", "debias_ewma": "debias"}
TOOLS = {
    "OSS": Tool(
        OSS,
        ["OssOptions"],
        only_python="params optim group mesh broadcast_buffer_size broadcast_fp16 force_broadcast_object default",
        only_cpp="first_bucket_bytes",
    ),
    "ShardedDataParallel": Tool(
        ShardedDataParallel,
        ["DataParallelOptions"],
        {"reduce_buffer_size": "bucket_bytes"},
        only_python="module sharded_optimizer process_group mesh auto_refresh_trainable reduce_fp16 "
        "warn_on_trainable_params_changed device_ids",
        only_cpp="buckets_in_flight waits_by_block",
    ),
    "AdaScale": Tool(
        AdaScale, ["GainMeterOptions", "AdaScaleOptions"], _GAIN, only_python="optimizer world_size", only_cpp="gain"
    ),
    "AdaScaleWrapper": Tool(
        AdaScaleWrapper,
        ["GainMeterOptions", "AdaScaleOptions"],
        _GAIN,
        only_python="params world_size optim_cls additional_optim_args",
        only_cpp="gain",
    ),
    "ShardedGradScaler": Tool(ShardedGradScaler, ["GradScalerOptions"], only_python="process_group device"),
    "SlowMoDistributedDataParallel": Tool(
        SlowMoDistributedDataParallel,
        ["SlowMoOptions", "OuterOptions"],
        {
            "slowmo_base_algorithm": "base",
            "outer_optimizer": "optimizer",
            "slowmo_lr": "learning_rate",
            "slowmo_momentum": "momentum",
            "slowmo_frequency": "slow_frequency",
            "localsgd_frequency": "average_frequency",
            "fragment_delay": "delay",
            "overlap": "overlap_gossip",
            "synch_freq": "gossip_frequency",
            "slowmo_sgp_average_params": "average_at_slow_step",
            "slowmo_memory_efficient": "shard_buffers",
            "slowmo_num_shards": "pieces",
            "comm_device": "host_memory",
        },
        only_python="module nprocs_per_node mixing push_sum use_streams verbose profile_mode process_rank "
        "process_world_size global_group master_group local_node_group",
        only_cpp="outer auto_momentum bucket_bytes smallest_piece_bytes",
    ),
    "OffloadModel": Tool(
        OffloadModel,
        ["OffloadOptions"],
        only_python="model device offload_device blocks optimizer overlap_forward",
        only_cpp="device",
    ),
    "Checkpoint": Tool(Checkpoint, ["SaverOptions"], only_python="directory parts process_group", only_cpp="linger_s"),
}

#: Where Python has another word for the same.
SAME = {
    ("OSS", "partition", "auto"): None,  # the class of the optimizer decides
    ("ShardedDataParallel", "reduce_buffer_size", 25 * 2**18): 25 << 20,  # elements of float32
    ("SlowMoDistributedDataParallel", "graph", None): "exponential",
    ("SlowMoDistributedDataParallel", "synch_freq", 0): 1,  # FairScale's word for every call
    ("SlowMoDistributedDataParallel", "comm_device", None): False,  # where parameters are
    ("OffloadModel", "spill_dir", None): "",
}


def cpp_defaults(struct, headers=_HEADERS):
    """Name -> default, of the TORCH_ARGs of a struct."""
    (body,) = re.findall(rf"^struct {struct} \{{$(.*?)^\}};$", headers, flags=re.M | re.S)
    found = re.findall(r"^  TORCH_ARG\((.+), (\w+)\)(?: = (.+))?;$", body, flags=re.M)
    assert len(found) == body.count("TORCH_ARG")
    return {name: _value(kind, text) for kind, name, text in found}


def _value(kind, text):
    if not text:
        return "" if kind == "std::string" else None
    if member := re.fullmatch(r"\w+::k(\w+)", text):
        words = re.findall(r"[A-Z][a-z0-9]*|[A-Z]+", member.group(1))
        return "_".join(words).lower() if kind != "BaseAlgorithm" else "".join(words).lower()
    if text in ("true", "false"):
        return text == "true"
    low, _, shift = text.partition(" << ")
    return float(low) * 2 ** int(shift or 0)


def python_defaults(tool):
    return {name: p.default for name, p in inspect.signature(TOOLS[tool].python.__init__).parameters.items()}


@pytest.mark.parametrize("name", TOOLS)
def test_defaults_are_the_same(name):
    tool = TOOLS[name]
    ours = python_defaults(name)
    theirs = {key: value for struct in tool.structs for key, value in cpp_defaults(struct).items()}
    compared = {key: tool.renamed.get(key, key) for key in ours if key not in ("self", *tool.only_python)}
    assert set(compared.values()) == set(theirs) - tool.only_cpp, "an option that one of both does not have"
    for key, other in compared.items():
        value = ours[key].value if isinstance(ours[key], Enum) else ours[key]
        assert SAME.get((name, key, value), value) == theirs[other], f"{key} of {name}"


@pytest.mark.parametrize("name", TOOLS)
def test_what_only_one_has_is_there(name):
    tool = TOOLS[name]
    assert tool.only_python | set(tool.renamed) <= set(python_defaults(name))
    assert tool.only_cpp <= {key for struct in tool.structs for key in cpp_defaults(struct)}


def test_a_default_that_differs_is_seen():
    assert cpp_defaults("A", "struct A {\n  TORCH_ARG(bool, x) = true;\n  TORCH_ARG(int64_t, y) = 25 << 20;\n};\n") == {
        "x": True,
        "y": 25 * 2**20,
    }
    outer = cpp_defaults("OuterOptions")
    assert (outer["base"], outer["optimizer"], outer["wire"]) == ("localsgd", "slow_momentum", "float32")


def test_optimizers_are_told_apart_by_one_list():
    """The core's names; C++ has a part of the classes that Python has."""
    from fairshard._core import shard

    classes = [name for name, c in vars(torch.optim).items() if isinstance(c, type) and shard.is_element_wise(name)]
    assert "AdamW" in classes and "Muon" not in classes and "LBFGS" not in classes
    specialised = set(re.findall(r"struct IsElementWise<torch::optim::(\w+)>", _HEADERS))
    assert specialised and all(shard.is_element_wise(name) for name in specialised)
    assert all(shard.is_adam_like(n) for n in re.findall(r"struct IsAdamLike<(?:torch::optim::)?(\w+)>", _HEADERS))
