"""ShardedStrategy: Lightning's Trainer with a ShardedDataParallel and an OSS for each optimizer."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from fairshard._frameworks import shard_scaler, sharded, split
from fairshard.lightning._names import TrainerDDPStrategy
from fairshard.lightning._wrapping import WrappingStrategy
from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS

__all__ = ["ShardedStrategy"]


class ShardedStrategy(WrappingStrategy):
    """Trains as Lightning's ``ddp`` does, with optimizer state and gradients sharded over the ranks.

    Whatever ``configure_optimizers`` returns is taken: optimizers are sharded, schedulers go on. Checkpoints are
    those of Lightning's ``ddp``, with the optimizer's whole state: each loads the other's.

    Example::

        import fairshard.lightning

        trainer = Trainer(strategy="ddp_sharded")  # or, with options:
        trainer = Trainer(strategy=fairshard.lightning.ShardedStrategy(overlap_gather=True))
        trainer.fit(model)  # optimizer.step() steps what a rank owns

    Args:
        checkpoint_folders: checkpoints are folders, to which every rank writes what it owns, and which any number of
            ranks loads; see :class:`~fairshard.checkpoint.Checkpoint`. Both kinds are loaded, whatever this says.
        **options: those of :class:`~fairshard.optim.OSS`, of
            :class:`~fairshard.nn.data_parallel.ShardedDataParallel` and of Lightning's DDPStrategy, by their names.
    """

    def __init__(self, checkpoint_folders: bool = False, **options: Any) -> None:
        self._of_optimizers, self._of_model, own = split(options, OSS, ShardedDataParallel, TrainerDDPStrategy)
        super().__init__(**own)
        self._saves_folders = checkpoint_folders

    def _setup_model(self, model: nn.Module) -> nn.Module:
        return ShardedDataParallel(model, **self._of_model)

    def setup_optimizers(self, trainer: Any) -> None:
        """Shards what ``configure_optimizers`` returns."""
        super().setup_optimizers(trainer)
        self.optimizers = [sharded(optimizer, self._of_optimizers) for optimizer in self.optimizers]

    def setup_precision_plugin(self) -> None:
        """Has all ranks skip a step of float16, or none."""
        super().setup_precision_plugin()
        shard_scaler(self.precision_plugin)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The module's, when all parameters are in place."""
        return {} if self._saves_folders else self.model.state_dict()

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Loads the module's part of a checkpoint, when all parameters are in place."""
        if self._is_wrapped:
            self.model.wait_for_parameters()
        super().load_model_state_dict(checkpoint, strict)

    def on_train_end(self) -> None:
        """Leaves the module with all of its parameters."""
        self.model.wait_for_parameters()
        super().on_train_end()
