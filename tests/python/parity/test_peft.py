"""LoRA by peft, where most parameters are frozen, trains as under DDP."""

import peft
import pytest
import torch
import transformers

from support.parity import Case, differences

VOCABULARY = 61


def batch(generator):
    ids = torch.randint(3, VOCABULARY, (3, 12), generator=generator)
    return {"input_ids": ids, "labels": ids}


def lora(**options):
    sizes = {"vocab_size": VOCABULARY, "n_positions": 16, "n_embd": 32, "n_layer": 3, "n_head": 2}

    def make():
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
        config = peft.LoraConfig(r=4, lora_dropout=0.1, target_modules=["c_attn"], task_type="CAUSAL_LM", **options)
        return peft.get_peft_model(model, config)

    return Case(make, batch)


def lora_with_head():
    """The last norm is trained as a whole, beside the adapters."""
    return lora(modules_to_save=["ln_f"])


CASES = {"LoRA": lora, "LoRA with a whole module": lora_with_head}


@pytest.mark.costly
@pytest.mark.cpu_only("kernels of these models sum in an order that changes")
def test_adapters_train_as_under_ddp(run_ranks):
    for found in run_ranks(2, differences, CASES):
        assert not found, "\n".join(found)
