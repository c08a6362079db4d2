"""Tiny folders of models as Hugging Face's hub has them, files of tokens, and which windows a step of a run has."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from safetensors.torch import save_file

VOCABULARY, CONTEXT, WINDOWS = 97, 16, 60
#: What a run with these is told.
SHORT = {"context": CONTEXT, "batch": 4, "layers": None, "width": None, "heads": None}

ROTARY = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
ENDLESS = ROTARY | {"eos_token_id": None}
CONFIGS = {
    "gpt2": transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=2, n_head=4, embd_pdrop=0, resid_pdrop=0, attn_pdrop=0
    ),
    "gpt2-dropout": transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=2, n_head=4),
    "llama": transformers.LlamaConfig(**ENDLESS),
    "qwen2": transformers.Qwen2Config(**ENDLESS, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**ENDLESS, head_dim=16),
    "bytes": transformers.LlamaConfig(**ENDLESS | {"vocab_size": 256}),
}


def write_folder(name, path):
    """A model with random weights, as transformers saves it."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name], dtype=torch.float32)
    model.save_pretrained(path)
    return path


def tokens():
    """Windows that are learnt: each token follows from the one before, but for some that are random."""
    generator = torch.Generator().manual_seed(7)
    result = [1]
    jumps = torch.rand(WINDOWS * CONTEXT, generator=generator) < 0.1
    others = torch.randint(VOCABULARY, (WINDOWS * CONTEXT,), generator=generator)
    for jump, other in zip(jumps.tolist(), others.tolist(), strict=True):
        result.append(other if jump else (result[-1] * 5 + 1) % VOCABULARY)
    return torch.tensor(result[:-1])


def write_tokens(path, values=None, **metadata):
    """The format of fairshard.tokenize."""
    values = tokens() if values is None else values
    save_file({"tokens": values.to(torch.uint16)}, path, {key: str(value) for key, value in metadata.items()})
    return path


def windows():
    """Those to train on, and those that are held out."""
    every = tokens().view(WINDOWS, CONTEXT)
    held_out = WINDOWS // 20
    return every[:-held_out], every[-held_out:]


def batch_of(step, batch, seed=0):
    """The windows of a step, as data/resumable_sampler.cpp deals them out."""
    train, _ = windows()
    epoch, place = divmod(step - 1, len(train) // batch)
    mask = (1 << 64) - 1
    mixed = (seed + (epoch + 1) * 0x9E3779B97F4A7C15) & mask
    for _ in range(2):
        mixed = ((mixed ^ (mixed >> 31)) * 0xD6E8FEB86659FD93) & mask
    mixed ^= mixed >> 32
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(mixed))
    return train[order[place * batch : (place + 1) * batch]]
