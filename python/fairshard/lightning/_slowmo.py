"""SlowMoStrategy: nodes that train apart, under Lightning's Trainer."""

from typing import Any

from torch import nn

from fairshard._frameworks import split
from fairshard.experimental.nn.data_parallel import SlowMoDistributedDataParallel
from fairshard.lightning._names import TrainerDDPStrategy
from fairshard.lightning._wrapping import WrappingStrategy

__all__ = ["SlowMoStrategy"]


class SlowMoStrategy(WrappingStrategy):
    """Averages gradients inside a node, and synchronises nodes when it is due, after an optimizer's step.

    Checkpoints are folders, with each node's parameters, optimizers and slow momentum, and go on with the same nodes.
    When training ends, all nodes take their average.

    Example::

        trainer = Trainer(strategy=SlowMoStrategy(slowmo_frequency=48, slowmo_momentum="auto"))
        trainer.fit(model)  # every optimizer.step() is followed by perform_slowmo()

    Args:
        nprocs_per_node: how many ranks a node has (default: as many as Lightning starts on one).
        **options: those of :class:`~fairshard.experimental.nn.data_parallel.SlowMoDistributedDataParallel` and of
            Lightning's DDPStrategy, by their names.
    """

    _saves_folders = True

    def __init__(self, nprocs_per_node: int | None = None, **options: Any) -> None:
        hooks = [name for name in options if name.startswith("ddp_comm_")]
        if hooks:
            raise TypeError(
                f"SlowMoStrategy: {hooks[0]} is DDP's; what travels between nodes, and how, are options here"
            )
        self._of_model, own = split(options, SlowMoDistributedDataParallel, TrainerDDPStrategy)
        super().__init__(**own)
        self._nprocs_per_node = nprocs_per_node

    def _setup_model(self, model: nn.Module) -> nn.Module:
        return SlowMoDistributedDataParallel(model, self._nprocs_per_node or self.num_processes, **self._of_model)

    def optimizer_step(self, optimizer: Any, *arguments: Any, **kwargs: Any) -> Any:
        """Steps, and synchronises nodes where that is due."""
        result = super().optimizer_step(optimizer, *arguments, **kwargs)
        self.model.perform_slowmo(optimizer)
        return result

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Nothing: folders have it."""
        return {}

    def on_train_end(self) -> None:
        """Leaves all nodes with one model."""
        self.model.average_parameters()
        super().on_train_end()
