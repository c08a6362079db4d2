"""A causal language model by Hugging Face's Trainer, in the shape of its run_clm.py, with one line more.

    torchrun --nproc-per-node 2 run_clm.py --sharded_ddp simple --output_dir out --do_train --do_eval

Trains on the characters of a text of its own. Prints the perplexity: "perplexity 4.1".
"""

# ruff: noqa: F811, I001
import math
from dataclasses import dataclass, field

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments, set_seed

from fairshard.transformers import ShardedTrainer as Trainer, ShardedTrainingArguments as TrainingArguments  # the line

TEXT = "the rain in spain stays mainly in the plain. " * 200


@dataclass
class ModelArguments:
    width: int = field(default=32, metadata={"help": "of the model's layers"})


@dataclass
class DataTrainingArguments:
    block_size: int = field(default=32, metadata={"help": "characters in a sequence"})


def main():
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    set_seed(training_args.seed)

    characters = sorted(set(TEXT))
    tokens = torch.tensor([characters.index(character) for character in TEXT])
    blocks = [{"input_ids": block, "labels": block} for block in tokens.split(data_args.block_size)[:-1]]
    config = GPT2Config(
        vocab_size=len(characters), n_positions=data_args.block_size, n_embd=model_args.width, n_layer=2, n_head=2
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config), args=training_args, train_dataset=blocks[:-16], eval_dataset=blocks[-16:]
    )
    if training_args.do_train:
        trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
        trainer.save_model()
    if training_args.do_eval:
        metrics = trainer.evaluate()
        if trainer.is_world_process_zero():
            print(f"perplexity {math.exp(metrics['eval_loss']):.3g}")


if __name__ == "__main__":
    main()
