# Made by scripts/stubs.
from __future__ import annotations
import collections.abc
import torch
import torch._C._distributed_c10d
import torch.distributed.distributed_c10d
import typing
__all__: list[str] = ['Environment', 'Group', 'Mesh', 'ReduceOp', 'Work', 'all_gather', 'all_reduce', 'barrier', 'broadcast', 'broadcast_all', 'explain_waits', 'explain_waits_after', 'explain_waits_on_signal', 'make_backend', 'meet', 'node_groups', 'note_step', 'reduce_scatter']
class Environment:
    """
    Who this rank is, by its launcher's variables.
    """
    def __init__(self) -> None:
        ...
    @property
    def local_rank(self) -> int:
        ...
    @property
    def local_world_size(self) -> int:
        ...
    @property
    def rank(self) -> int:
        ...
    @property
    def world_size(self) -> int:
        ...
class Group:
    def __init__(self, process_group: torch.distributed.distributed_c10d.ProcessGroup) -> None:
        ...
    def duplicate(self) -> Group:
        """
        A group of the same ranks, whose collectives do not wait for those of this one. Collective.
        """
    @property
    def collectives(self) -> int:
        """
        How many collectives this rank has started.
        """
    @property
    def control_device(self) -> torch.device:
        """
        Where small tensors that the host reads are best.
        """
    @property
    def rank(self) -> int:
        """
        This process's rank.
        """
    @property
    def sent_bytes(self) -> int:
        """
        Payload that this rank has sent, in bytes.
        """
    @property
    def size(self) -> int:
        """
        How many ranks there are.
        """
    @property
    def timeout_s(self) -> float:
        """
        How long any wait may take, in seconds.
        """
    @property
    def waited_s(self) -> float:
        """
        Seconds that this rank has waited for collectives; over NCCL a stream waits, which is not counted.
        """
class Mesh:
    @typing.overload
    def __init__(self, all: Group) -> None:
        ...
    @typing.overload
    def __init__(self, all: Group, shards: Group, replicas: Group) -> None:
        ...
class ReduceOp:
    """
    How values of ranks become one.
    
    Members:
    
      SUM
    
      AVG
    
      MIN
    
      MAX
    """
    AVG: typing.ClassVar[ReduceOp]  # value = <ReduceOp.AVG: 1>
    MAX: typing.ClassVar[ReduceOp]  # value = <ReduceOp.MAX: 3>
    MIN: typing.ClassVar[ReduceOp]  # value = <ReduceOp.MIN: 2>
    SUM: typing.ClassVar[ReduceOp]  # value = <ReduceOp.SUM: 0>
    __members__: typing.ClassVar[dict[str, ReduceOp]]  # value = {'SUM': <ReduceOp.SUM: 0>, 'AVG': <ReduceOp.AVG: 1>, 'MIN': <ReduceOp.MIN: 2>, 'MAX': <ReduceOp.MAX: 3>}
    def __eq__(self, other: typing.Any) -> bool:
        ...
    def __getstate__(self) -> int:
        ...
    def __hash__(self) -> int:
        ...
    def __index__(self) -> int:
        ...
    def __init__(self, value: typing.SupportsInt) -> None:
        ...
    def __int__(self) -> int:
        ...
    def __ne__(self, other: typing.Any) -> bool:
        ...
    def __repr__(self) -> str:
        ...
    def __setstate__(self, state: typing.SupportsInt) -> None:
        ...
    def __str__(self) -> str:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def value(self) -> int:
        ...
class Work:
    """
    A collective that has been started.
    """
    def is_done(self) -> bool:
        """
        Whether wait() would return or raise at once.
        """
    def wait(self) -> None:
        """
        Blocks until the results are in place.
        """
def all_gather(group: Group, output: torch.Tensor, input: torch.Tensor, label: str = '', bounds: collections.abc.Sequence[typing.SupportsInt] = []) -> Work:
    """
    Puts all inputs into output, in rank order.
    """
def all_reduce(group: Group, tensor: torch.Tensor, op: ReduceOp = ReduceOp.SUM, label: str = '') -> Work:
    """
    Makes every rank's tensor the reduction of all.
    """
def barrier(group: Group, label: str = '') -> None:
    """
    Returns when every rank has come here.
    """
def broadcast(group: Group, tensor: torch.Tensor, root: typing.SupportsInt, label: str = '') -> Work:
    """
    Makes every rank's tensor that of root.
    """
def broadcast_all(group: Group, tensors: collections.abc.Sequence[torch.Tensor], root: typing.SupportsInt, label: str = '') -> None:
    """
    Makes every rank's tensors, of any strides, those of root, in place. Blocks.
    """
def explain_waits(group: Group) -> str:
    """
    What each rank of the group waits for, as a table, and who holds up the others. Blocks for seconds.
    """
def explain_waits_after(group: Group, seconds: typing.SupportsFloat) -> None:
    """
    Has waits that are longer than this explained in the log.
    """
def explain_waits_on_signal(signal: typing.SupportsInt) -> None:
    """
    Has waits of all groups explained in the log when this signal comes.
    """
def make_backend(store: torch.distributed.distributed_c10d.Store, rank: typing.SupportsInt, size: typing.SupportsInt, timeout_s: typing.SupportsFloat) -> torch._C._distributed_c10d.Backend:
    """
    The c10d backend 'fairshard' of a rank. Blocks until all ranks have come.
    """
def meet(environment: Environment, timeout_s: typing.SupportsFloat) -> torch.distributed.distributed_c10d.Store:
    """
    Meets the other ranks; the store that they share. Blocks until all ranks have come.
    """
def node_groups(all: Group, ranks_per_node: typing.SupportsInt) -> tuple[torch.distributed.distributed_c10d.ProcessGroup, torch.distributed.distributed_c10d.ProcessGroup]:
    """
    The groups of the ranks of this rank's node, and of those that have its place on every node. They last while they are used. Collective.
    """
def note_step(group: Group, step: typing.SupportsInt) -> None:
    """
    Tells which step this rank has finished, for explanations of waits.
    """
def reduce_scatter(group: Group, output: torch.Tensor, input: torch.Tensor, op: ReduceOp = ReduceOp.SUM, label: str = '', bounds: collections.abc.Sequence[typing.SupportsInt] = []) -> Work:
    """
    Makes output this rank's part of the reduction of all inputs.
    """
