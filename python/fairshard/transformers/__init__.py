"""What ``--sharded_ddp`` was in Hugging Face's Trainer: a Trainer that shards optimizer state and gradients."""

from fairshard.transformers._arguments import ShardedTrainingArguments
from fairshard.transformers._trainer import ShardedTrainer, ShardedTrainerMixin

__all__ = ["ShardedTrainer", "ShardedTrainerMixin", "ShardedTrainingArguments"]
