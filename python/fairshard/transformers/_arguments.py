"""TrainingArguments with ``--sharded_ddp``."""

from dataclasses import dataclass, field

from transformers import TrainingArguments

__all__ = ["OPTIONS", "ShardedTrainingArguments"]

#: What the words of ``--sharded_ddp`` mean here.
OPTIONS: dict[str, dict] = {"simple": {}, "zero_dp_2": {}, "zero_dp_3": {"release_parameters": True}}


@dataclass
class ShardedTrainingArguments(TrainingArguments):
    """TrainingArguments that still know ``--sharded_ddp``, for a :class:`ShardedTrainer`.

    "simple" and "zero_dp_2" shard optimizer state and gradients; "zero_dp_3" also releases parameters between a block's
    forward and backward. Without it, the Trainer does what Hugging Face's own does.
    """

    sharded_ddp: str = field(default="", metadata={"help": f"one of {', '.join(OPTIONS)}; or nothing"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sharded_ddp and self.sharded_ddp not in OPTIONS:
            raise ValueError(f"sharded_ddp is {self.sharded_ddp!r}, but must be one of {', '.join(map(repr, OPTIONS))}")
