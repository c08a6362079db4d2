"""ShardedTrainer: Hugging Face's Trainer with a ShardedDataParallel and an OSS."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from transformers import Trainer

from fairshard._frameworks import Meter, shard_scaler, sharded, split
from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
from fairshard.transformers._arguments import OPTIONS

__all__ = ["ShardedTrainer", "ShardedTrainerMixin"]


class ShardedTrainerMixin:
    """Stands before Trainer, or a class made from it: ``class Mine(ShardedTrainerMixin, Seq2SeqTrainer)``.

    Example::

        trainer = ShardedTrainer(model, args, train_dataset=data, sharding={"overlap_gather": True})
        trainer.train()  # by torchrun; optimizer.step() steps what a rank owns
        trainer.save_model()

    Args:
        *arguments: those of the Trainer.
        sharding: options of :class:`~fairshard.optim.OSS` and of
            :class:`~fairshard.nn.data_parallel.ShardedDataParallel`, by their names.
        **kwargs: those of the Trainer.
    """

    def __init__(self, *arguments: Any, sharding: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self._sharding = sharding or {}
        self._meter = Meter()
        super().__init__(*arguments, **kwargs)

    def create_accelerator_and_postprocess(self) -> None:
        """Has all ranks skip a step of float16, or none."""
        super().create_accelerator_and_postprocess()
        mode = getattr(self.args, "sharded_ddp", "simple")  # plain TrainingArguments do not ask
        self._is_sharded = mode != ""
        if not self._is_sharded:
            return
        if not dist.is_initialized():
            raise ValueError(
                "ShardedTrainer shards over several ranks: start the program by torchrun, or accelerate launch"
            )
        self._of_optimizer, self._of_model = split({**OPTIONS[mode], **self._sharding}, OSS, ShardedDataParallel)
        shard_scaler(self.accelerator)

    def create_optimizer(self, *arguments: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """Shards what the Trainer makes, or was given; its schedulers go on."""
        super().create_optimizer(*arguments, **kwargs)
        if self._is_sharded and self._oss is None:
            self.optimizer = sharded(self.optimizer, self._of_optimizer)
        return self.optimizer

    @property
    def _oss(self) -> OSS | None:
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)  # Accelerate wraps it
        return optimizer if hasattr(optimizer, "sharded_step") else None

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        if not self._is_sharded or not training:
            return super()._wrap_model(model, training, dataloader)
        if isinstance(model, ShardedDataParallel):
            return model
        model = self.accelerator.prepare_model(model, evaluation_mode=True)  # places and casts it, and does not wrap
        return ShardedDataParallel(model, **self._of_model)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        if grad_norm is None and self._is_sharded and self._of_optimizer.get("step_in_backward"):
            return None  # gradients are gone, and cannot be logged
        return super()._get_grad_norm(model, grad_norm)

    def log(self, logs: dict[str, float], *arguments: Any, **kwargs: Any) -> None:
        """Logs, with each loss, how long this rank has waited for others since the last, and what it has sent."""
        if self._is_sharded and "loss" in logs:
            logs.update(self._meter.take([self._oss]))
        super().log(logs, *arguments, **kwargs)

    def _wait_for_parameters(self) -> None:
        if self._oss is not None:
            self._oss.wait_for_parameters()

    def _finalize_training(self, *arguments: Any, **kwargs: Any) -> Any:
        self._wait_for_parameters()
        return super()._finalize_training(*arguments, **kwargs)

    def evaluation_loop(self, *arguments: Any, **kwargs: Any) -> Any:
        """Evaluates when all parameters are in place. On all ranks."""
        self._wait_for_parameters()
        return super().evaluation_loop(*arguments, **kwargs)

    def save_model(self, *arguments: Any, **kwargs: Any) -> None:
        """Saves the model when all parameters are in place. To be called on all ranks."""
        self._wait_for_parameters()
        super().save_model(*arguments, **kwargs)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self._oss is not None:
            self._oss.consolidate_state_dict()
        super()._save_optimizer_and_scheduler(output_dir)


class ShardedTrainer(ShardedTrainerMixin, Trainer):
    """Trains as Hugging Face's Trainer does with DDP, with optimizer state and gradients sharded over the ranks.

    Checkpoints are those of the Trainer, with the optimizer's whole state: each loads the other's.

    Example::

        trainer = ShardedTrainer(model, args, train_dataset=data, sharding={"overlap_gather": True})
        trainer.train()  # by torchrun; optimizer.step() steps what a rank owns
    """
