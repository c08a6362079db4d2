"""Small programs for Hugging Face's Trainer, in ranks that run already. Imported only there: it takes seconds."""

import logging
import warnings

import torch
import transformers
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from fairshard.transformers import ShardedTrainer, ShardedTrainerMixin, ShardedTrainingArguments  # noqa: F401
from support.ranks import set_torchrun_variables

set_torchrun_variables()
logging.disable(logging.WARNING)
warnings.filterwarnings("ignore", message=".*pin_memory|.*loss_type")
transformers.utils.logging.disable_progress_bar()


def model(**options) -> nn.Module:
    torch.manual_seed(0)
    config = {"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 64, "n_positions": 16, "use_cache": False}
    return GPT2LMHeadModel(GPT2Config(**config, **options))


def data(seed: int = 0) -> list[dict]:
    rows = torch.randint(64, (24, 12), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": row, "labels": row} for row in rows]


def arguments(folder: str, make: type = TrainingArguments, **options) -> TrainingArguments:
    """Four steps of two batches on each of two ranks, whose gradients are not clipped."""
    plain = {"max_grad_norm": 0, "learning_rate": 1e-2, "save_strategy": "no", "lr_scheduler_type": "cosine"}
    plain |= {"per_device_train_batch_size": 3, "max_steps": 4, "report_to": "none", "disable_tqdm": True}
    return make(folder, use_cpu=True, logging_steps=1, **{**plain, **options})


def train(make: type, args: TrainingArguments, trained: nn.Module | None = None, resume=None, **options) -> Trainer:
    trainer = make(trained or model(), args, train_dataset=data(), eval_dataset=data(1), **options)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def losses(trainer: Trainer) -> list:
    """All that was logged, but for times."""
    names = ("loss", "eval_loss", "learning_rate", "epoch")
    return [{name: entry[name] for name in names if name in entry} for entry in trainer.state.log_history]


def assert_same(ours: Trainer, theirs: Trainer, what: object, **tolerances) -> None:
    for (name, value), other in zip(ours.model.state_dict().items(), theirs.model.state_dict().values(), strict=True):
        torch.testing.assert_close(
            value,
            other,
            **(tolerances or {"rtol": 0, "atol": 0}),
            msg=lambda text, name=name: f"{what}: {name}: {text}",
        )
    assert tolerances or losses(ours) == losses(theirs), what
