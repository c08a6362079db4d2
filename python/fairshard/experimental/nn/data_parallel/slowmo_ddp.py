"""SlowMoDistributedDataParallel: data parallelism that synchronises nodes rarely."""

import contextlib
import logging
import warnings
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from fairshard import comm
from fairshard._core import outer as _outer
from fairshard.experimental.nn.data_parallel._node_oss import check_oss, watch_steps
from fairshard.experimental.nn.data_parallel._nodes import make_groups
from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS

__all__ = ["SlowMoBaseAlgorithm", "SlowMoDistributedDataParallel"]

_log = logging.getLogger(__name__)
_STATE = "slowmo."


class SlowMoBaseAlgorithm(str, Enum):
    """What nodes do between slow steps: exact averages (LOCALSGD), or gossip by push-sum (SGP)."""

    LOCALSGD = "localsgd"
    SGP = "sgp"


class SlowMoDistributedDataParallel(nn.Module):
    """Wraps a module so that nodes train apart and come together now and then.

    Rank r is on node r / nprocs_per_node. Gradients are averaged inside a node in every backward; between nodes
    something travels only in :meth:`perform_slowmo`, which is called after every ``optimizer.step()``. Construction
    takes rank 0's parameters and buffers to all, and is collective; so is every backward. Attributes that are not
    found here are the module's.

    An OSS that was made before, over the ranks of this node, shards optimizer state, gradients and the outer
    optimizer's buffers within the node, in all of its modes: each rank synchronises what it owns.

    Example::

        model = SlowMoDistributedDataParallel(model, nprocs_per_node=8, slowmo_momentum="auto")
        loss_fn(model(data), target).backward()  # averages gradients inside the node
        optimizer.step()
        model.perform_slowmo(optimizer)  # after every step; nodes are synchronised when it is due

    Args:
        module: the module.
        nprocs_per_node: how many ranks a node has.
        broadcast_buffers: a node's ranks take the buffers of its first rank before a forward in training, and with
            every exact average nodes take their average.
        slowmo_base_algorithm: LocalSGD, or SGP (gossip by push-sum).
        slowmo_momentum: in [0, 1); 0 turns slow momentum off; "auto" takes what is suggested for the number of nodes.
        slowmo_memory_efficient: each rank holds its range of the slow buffers, instead of all.
        slowmo_frequency: a slow step is done at calls that are multiples of this.
        slowmo_lr: the slow learning rate, alpha.
        slowmo_num_shards: in about how many pieces parameters are worked on; more need less working memory.
        localsgd_frequency: an exact average is taken at calls that are multiples of this.
        graph: for SGP, "exponential" (the default) or "ring".
        mixing: for SGP, "uniform" (the default).
        push_sum: accepted; without overlap all weights are 1, and with it they are needed.
        overlap: for SGP, messages are taken in at the mixing after that which sent them.
        synch_freq: for SGP, mix at calls that are multiples of this, if above 0.
        use_streams: accepted.
        slowmo_sgp_average_params: for SGP, a slow step begins with the exact average. If not, every node has slow
            momentum of its own.
        verbose: tell of every synchronisation, through logging.
        profile_mode: accepted.
        process_rank: accepted, if it is the rank in the group.
        process_world_size: accepted, if it is the size of the group.
        global_group: all ranks (default: the world).
        master_group: the ranks that have this rank's place on every node; made, if not given.
        local_node_group: the ranks of this node; made, if not given.
        comm_device: if it is the CPU, slow buffers lie in host memory.
        outer_optimizer: "slow_momentum", "nesterov" (DiLoCo; ``slowmo_lr`` and ``slowmo_momentum`` are its own) or
            "average".
        fragments: streaming: so many parts of the parameters take turns.
        fragment_delay: how many calls after it was sent a part is taken in.
        local_weight: the weight that a node's own values keep then.
        wire: "float32", "bfloat16", "int8" or "sparse": what travels between nodes.
        zero_inner_momentum: whether a slow step zeroes SGD's momentum (default: that of slow momentum does).
        zero_adam: whether a slow step makes Adam's averages start anew.
        reduce_dtype: the dtype in which gradients travel inside a node.
    """

    _has_nodes = True  # a Checkpoint saves all parts for each node

    def __init__(
        self,
        module: nn.Module,
        nprocs_per_node: int,
        broadcast_buffers: bool = True,
        slowmo_base_algorithm: SlowMoBaseAlgorithm = SlowMoBaseAlgorithm.LOCALSGD,
        slowmo_momentum: "float | str" = 0.5,
        slowmo_memory_efficient: bool = True,
        slowmo_frequency: int = 48,
        slowmo_lr: float = 1.0,
        slowmo_num_shards: int = 32,
        localsgd_frequency: int = 3,
        graph: str | None = None,
        mixing: str | None = None,
        push_sum: bool = True,
        overlap: bool = False,
        synch_freq: int = 0,
        use_streams: bool = True,
        slowmo_sgp_average_params: bool = False,
        verbose: bool = False,
        profile_mode: bool = False,
        process_rank: int | None = None,
        process_world_size: int | None = None,
        global_group: "dist.ProcessGroup | None" = None,
        master_group: "dist.ProcessGroup | None" = None,
        local_node_group: "dist.ProcessGroup | None" = None,
        comm_device: "torch.device | str | None" = None,
        *,
        outer_optimizer: str = "slow_momentum",
        fragments: int = 1,
        fragment_delay: int = 0,
        local_weight: float = 0.0,
        wire: str = "float32",
        zero_inner_momentum: bool | None = None,
        zero_adam: bool = False,
        reduce_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        world = comm.Group(global_group)
        _check_same("process_rank", process_rank, world.rank)
        _check_same("process_world_size", process_world_size, world.size)
        _check_same("mixing", mixing, "uniform")
        if overlap and not push_sum:
            raise ValueError("overlap needs push_sum=True: what is under way changes the weights of nodes")
        _outer.check_ranks_per_node(world.size, nprocs_per_node)
        is_auto = slowmo_momentum == "auto"
        options = _outer.OuterOptions()
        settings = {
            "base": _outer.BaseAlgorithm.__members__[SlowMoBaseAlgorithm(slowmo_base_algorithm).name],
            "optimizer": _choice("outer_optimizer", outer_optimizer, _outer.OuterOptimizer),
            "learning_rate": slowmo_lr,
            "slow_frequency": slowmo_frequency,
            "average_frequency": localsgd_frequency,
            "fragments": fragments,
            "delay": fragment_delay,
            "local_weight": local_weight,
            "graph": _choice("graph", graph or "exponential", _outer.GossipGraph),
            "overlap_gossip": overlap,
            "gossip_frequency": synch_freq or 1,
            "average_at_slow_step": slowmo_sgp_average_params,
            "wire": _choice("wire", wire, _outer.WireFormat),
            "shard_buffers": slowmo_memory_efficient,
            "host_memory": comm_device is not None and torch.device(comm_device).type == "cpu",
            "pieces": slowmo_num_shards,
        }
        settings |= {} if is_auto else {"momentum": slowmo_momentum}
        for name, value in settings.items():
            setattr(options, name, value)
        self.module = module
        self.nprocs_per_node = nprocs_per_node
        self.broadcast_buffers = broadcast_buffers
        self.slowmo_base_algorithm = SlowMoBaseAlgorithm(slowmo_base_algorithm)
        self.verbose = verbose
        self._world = world
        inside, between = make_groups(world, nprocs_per_node, local_node_group, master_group)
        names, tensors = self._named_parameters()
        self._loop = _outer.SlowLoop(
            world,
            inside,
            between,
            names,
            tensors,
            list(module.buffers()),
            options,
            auto_momentum=is_auto,
            broadcast_buffers=broadcast_buffers,
            zero_inner_momentum=zero_inner_momentum,
            zero_adam=zero_adam,
        )
        self._warn_of(self._loop.advice)
        self._synchroniser = self._loop.synchroniser
        # Not as a module, whose parameters would count twice.
        self.__dict__["_parallel"] = ShardedDataParallel(
            module,
            process_group=inside.process_group,
            broadcast_buffers=broadcast_buffers,
            sync_models_at_startup=False,
            reduce_dtype=reduce_dtype,
        )
        if not self._loop.is_sharded:
            watch_steps(module, self)

    process_rank = property(lambda self: self._world.rank, doc="The rank among all.")
    process_world_size = property(lambda self: self._world.size, doc="How many ranks there are.")
    slowmo_lr = property(lambda self: self._settled.learning_rate, doc="The slow learning rate.")
    slowmo_momentum = property(lambda self: self._settled.momentum, doc='The slow momentum; of "auto" the number.')
    slowmo_frequency = property(lambda self: self._settled.slow_frequency, doc="Calls between slow steps.")
    localsgd_frequency = property(lambda self: self._settled.average_frequency, doc="Calls between averages.")
    slowmo_memory_efficient = property(lambda self: self._settled.shard_buffers, doc="Whether buffers are sharded.")
    slowmo_num_shards = property(lambda self: self._settled.pieces, doc="In how many pieces work is done.")
    push_sum_weight = property(lambda self: self._synchroniser.push_sum_weight, doc="This node's weight in SGP.")
    _settled = property(lambda self: self._synchroniser.options, doc="Options as they were settled.")

    @property
    def slowmo(self) -> bool:
        """Whether there is an outer optimizer, or only averages."""
        return self._settled.optimizer != _outer.OuterOptimizer.AVERAGE

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Runs the module."""
        names, tensors = self._named_parameters()
        if self._loop.is_behind(len(names)):
            self._loop.set_parameters(names, tensors)
        if self.training:
            self._warn_of(self._loop.count_forward())
        return self._parallel(*inputs, **kwargs)

    def perform_slowmo(
        self, optimizer: torch.optim.Optimizer, fp32_params: Iterable[torch.Tensor] | None = None
    ) -> None:
        """Synchronises nodes where it is due. To be called on all ranks after every ``optimizer.step()``.

        ``fp32_params`` are full-precision values of all parameters, in their order, if the optimizer has those; the
        module's parameters become copies of them.
        """
        check_oss(optimizer, self._loop.is_sharded)

        def zero(tensor: torch.Tensor, fields: list[str]) -> None:
            state = optimizer.state.get(tensor, {})
            for field in fields:
                if torch.is_tensor(state.get(field)):
                    state[field].zero_()

        stepped = [group["params"] for group in optimizer.param_groups]
        if isinstance(optimizer, OSS):
            stepped = optimizer.sharded_step.slices
        groups = [(float(group["lr"]), own) for group, own in zip(optimizer.param_groups, stepped, strict=True)]
        masters = [] if fp32_params is None else list(fp32_params)
        has_averaged, stepped = self._loop.step(groups, zero, masters, list(self.module.buffers()))
        if self.verbose and (has_averaged or stepped):
            done = f"slow step of {stepped}" if stepped else "exact average"
            _log.info("call %d: %s", self._synchroniser.calls, done)

    def average_parameters(self, fp32_params: Iterable[torch.Tensor] | None = None) -> None:
        """Makes the parameters of all nodes their average, at the end of training say. To be called on all ranks."""
        self._loop.average([] if fp32_params is None else list(fp32_params))

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        """Within it, backward reduces nothing and gradients add up; the next one reduces the sum."""
        return self._parallel.no_sync()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops all gradients."""
        self._parallel.zero_grad(set_to_none)

    def report(self) -> dict[str, Any]:
        """How often nodes were synchronised, and what this rank has sent inside and between nodes, in bytes."""
        return self._synchroniser.report()

    def outer_state(self) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
        """What this rank needs to go on, beside the module and the optimizer."""
        return self._synchroniser.state()

    def load_outer_state(self, tensors: dict[str, torch.Tensor], scalars: dict[str, float]) -> None:
        """Takes up what :meth:`outer_state` gave on this rank."""
        self._synchroniser.load_state(tensors, scalars)

    def state_dict(self, *arguments: Any, **kwargs: Any) -> dict[str, Any]:
        """The module's, and under ``slowmo.`` all that this rank needs to go on. Every rank has its own."""
        self._parallel.wait_for_parameters()
        state = super().state_dict(*arguments, **kwargs)
        prefix = kwargs.get("prefix", "") + _STATE
        tensors, scalars = self.outer_state()
        state.update({prefix + name: tensor for name, tensor in tensors.items()})
        state.update({prefix + name: torch.tensor(value, dtype=torch.float64) for name, value in scalars.items()})
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Takes up what :meth:`state_dict` gave on this rank. With ``strict=False`` a plain model's will do."""
        if assign:
            raise ValueError("load_state_dict(assign=True) would replace parameters that are being synchronised")
        own = {key.removeprefix(_STATE): value for key, value in state_dict.items() if key.startswith(_STATE)}
        rest = {key: value for key, value in state_dict.items() if not key.startswith(_STATE)}
        result = super().load_state_dict(rest, strict=strict)
        if own or strict:
            scalars = {key: float(value) for key, value in own.items() if value.ndim == 0}
            self.load_outer_state({key: own[key] for key in own if key not in scalars}, scalars)
        return result

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def _named_parameters(self) -> tuple[list[str], list[torch.Tensor]]:
        named = dict(self.module.named_parameters())
        return list(named), list(named.values())

    @staticmethod
    def _warn_of(text: str) -> None:
        if text:
            warnings.warn(text, stacklevel=3)


def _choice(name: str, value: str, choices: Any) -> Any:
    names = {key.lower(): member for key, member in choices.__members__.items()}
    if value not in names:
        raise ValueError(f"{name} is {value!r}, but must be one of {', '.join(map(repr, names))}")
    return names[value]


def _check_same(name: str, value: Any, expected: Any) -> None:
    if value not in (None, expected):
        raise ValueError(f"{name} is {value!r}, but must be {expected!r}")
