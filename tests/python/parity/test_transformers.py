"""Language models of transformers, made small and random from their configurations, train as under DDP."""

import pytest
import torch
import transformers

from support.parity import Case, differences, made

VOCABULARY, LENGTH = 61, 12


def tokens(generator):
    return torch.randint(3, VOCABULARY, (3, LENGTH), generator=generator)


def decoder_batch(generator):
    ids = tokens(generator)
    return {"input_ids": ids, "labels": ids}


def encoder_decoder_batch(generator):
    return {"input_ids": tokens(generator), "labels": tokens(generator)}


def gpt2():
    sizes = {"vocab_size": VOCABULARY, "n_positions": 16, "n_embd": 32, "n_layer": 3, "n_head": 2}
    return Case(lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)), decoder_batch)


def checkpointed_gpt2():
    case = gpt2()

    def make(plain=case.make):
        model = plain()
        model.gradient_checkpointing_enable()
        return model

    case.make = make
    return case


def llama():
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
    )
    return Case(lambda: transformers.LlamaForCausalLM(config), decoder_batch)


T5_SIZES = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}


def t5():
    return Case(
        lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(**T5_SIZES)), encoder_decoder_batch
    )


def switch():
    """With more experts than tokens go to, so that each rank leaves other ones idle."""
    config = transformers.SwitchTransformersConfig(
        **T5_SIZES, num_experts=16, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, expert_capacity=4
    )

    def make():
        return transformers.SwitchTransformersForConditionalGeneration(config)

    return Case(make, encoder_decoder_batch, has_unused=True)


DENSE = {"GPT-2": gpt2, "GPT-2, checkpointed": checkpointed_gpt2, "Llama": llama, "T5": t5}


@pytest.mark.costly
@pytest.mark.cpu_only("kernels of these models sum in an order that changes")
def test_language_models_train_as_under_ddp(run_ranks):
    for found in run_ranks(2, differences, DENSE):
        assert not found, "\n".join(found)


def _idle_experts(rank, world_size):
    """Parameters that the first batch of this rank leaves without a gradient."""
    case = switch()
    model = made(case)
    case.loss(model(**case.batch(torch.Generator().manual_seed(1000 * rank)))).backward()
    return {name for name, parameter in model.named_parameters() if parameter.grad is None}


@pytest.mark.costly
@pytest.mark.cpu_only("kernels of these models sum in an order that changes")
def test_a_mixture_of_experts_trains_as_under_ddp(run_ranks):
    for found in run_ranks(2, differences, {"Switch": switch}):
        assert not found, "\n".join(found)
    first, second = run_ranks(2, _idle_experts)
    assert first - second and second - first and first & second, "ranks leave other experts idle, and some none uses"
