"""ShardedStrategy: Lightning's Trainer with a ShardedDataParallel and an OSS for each optimizer."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from fairshard.lightning._names import TrainerDDPStrategy
from fairshard.lightning._options import is_wrapped, shard_scaler, sharded, split
from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS

__all__ = ["ShardedStrategy"]


class ShardedStrategy(TrainerDDPStrategy):
    """Trains as Lightning's ``ddp`` does, with optimizer state and gradients sharded over the ranks.

    Whatever ``configure_optimizers`` returns is taken: optimizers are sharded, schedulers go on. Checkpoints are
    those of Lightning's ``ddp``, with the optimizer's whole state: each loads the other's.

    Example::

        import fairshard.lightning

        trainer = Trainer(strategy="ddp_sharded")  # or, with options:
        trainer = Trainer(strategy=fairshard.lightning.ShardedStrategy(overlap_gather=True))
        trainer.fit(model)  # optimizer.step() steps what a rank owns

    Args:
        **options: those of :class:`~fairshard.optim.OSS`, of
            :class:`~fairshard.nn.data_parallel.ShardedDataParallel` and of Lightning's DDPStrategy, by their names.
    """

    def __init__(self, **options: Any) -> None:
        self._of_optimizers, self._of_model, own = split(options, OSS, ShardedDataParallel, TrainerDDPStrategy)
        super().__init__(**own)

    def configure_ddp(self) -> None:
        """Wraps the model; the optimizers come after it."""
        self.model = self._setup_model(self.model)

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

    @contextlib.contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Within it, gradients add up."""
        with self.model.no_sync() if is_wrapped(self.model) else contextlib.nullcontext():
            yield

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The module's, when all parameters are in place."""
        return self.model.state_dict() if is_wrapped(self.model) else super().lightning_module_state_dict()

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Loads the module's part of a checkpoint."""
        if is_wrapped(self.model):
            self.model.wait_for_parameters()
        super().load_model_state_dict(checkpoint, strict)

    def on_train_end(self) -> None:
        """Leaves the module with all of its parameters."""
        self.model.wait_for_parameters()
        super().on_train_end()

    def teardown(self) -> None:
        """Gives the module back as it was."""
        if is_wrapped(self.model):
            self.model = self.lightning_module
        super().teardown()
