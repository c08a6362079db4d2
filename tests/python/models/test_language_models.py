"""Models in C++ against transformers: small random ones of each architecture, from folders and to folders."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from support.hub_models import ROTARY, VOCABULARY

PROGRAM = Path(__file__).parents[3] / "build/bin/model_run"
STEPS, BATCH, LENGTH = 20, 2, 24

GPT2 = {"vocab_size": VOCABULARY, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}
PLAIN = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}
#: Fast, slow and middle frequencies are all among those of 16 features.
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 48,
}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 16}
WIDE = {"head_dim": 16}

CASES = {
    "gpt2": transformers.GPT2Config(**GPT2, **PLAIN),
    "gpt2-dropout": transformers.GPT2Config(**GPT2),
    "gpt2-untied": transformers.GPT2Config(**GPT2, **PLAIN, tie_word_embeddings=False),
    "gpt2-variants": transformers.GPT2Config(
        **GPT2, **PLAIN, n_inner=40, activation_function="gelu", scale_attn_by_inverse_layer_idx=True
    ),
    "gpt2-unscaled": transformers.GPT2Config(**GPT2, **PLAIN, scale_attn_weights=False),
    "llama": transformers.LlamaConfig(**ROTARY | {"num_key_value_heads": 4}, rms_norm_eps=1e-5),
    "llama-tied": transformers.LlamaConfig(**ROTARY, tie_word_embeddings=True, attention_dropout=0.1),
    "llama-biases": transformers.LlamaConfig(**ROTARY, attention_bias=True, mlp_bias=True, pad_token_id=3),
    "llama-llama3": transformers.LlamaConfig(**ROTARY, **WIDE, rope_parameters=LLAMA3),
    "llama-linear": transformers.LlamaConfig(
        **ROTARY, rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 2.5}
    ),
    "llama-yarn": transformers.LlamaConfig(**ROTARY, **WIDE, rope_parameters=YARN),
    "llama-yarn-variants": transformers.LlamaConfig(
        **ROTARY,
        **WIDE,
        rope_parameters=YARN
        | {"truncate": False, "beta_fast": 4, "beta_slow": 0.5, "mscale": 0.7, "mscale_all_dim": 0.3},
    ),
    "qwen2": transformers.Qwen2Config(**ROTARY | {"num_key_value_heads": 1}, pad_token_id=0),
    "qwen2-tied": transformers.Qwen2Config(**ROTARY, tie_word_embeddings=True, rope_parameters=YARN),
    "qwen3": transformers.Qwen3Config(**ROTARY, head_dim=24),
    "qwen3-tied": transformers.Qwen3Config(**ROTARY, **WIDE, tie_word_embeddings=True, attention_bias=True),
}
BFLOAT16 = ("gpt2-bfloat16", "llama-bfloat16")
CASES |= {
    BFLOAT16[0]: transformers.GPT2Config(**GPT2, **PLAIN),
    BFLOAT16[1]: transformers.LlamaConfig(**ROTARY, rope_parameters=YARN),
}
#: Files of GPT2Model, whose names have no "transformer.", and with masks, as those of the first GPT-2.
BASE = "gpt2-base"
CASES[BASE] = transformers.GPT2Config(**GPT2, **PLAIN)
#: Saved in several files.
SHARDED = ("gpt2-untied", "llama-biases", "qwen3")
#: With a config.json as older versions of transformers wrote it.
OLD = ("llama-llama3", "llama-linear", "qwen2-tied")


def made(config):
    """With weights of a size at which mistakes are seen, biases and norms included."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def batches():
    generator = torch.Generator().manual_seed(11)
    tokens = torch.randint(0, VOCABULARY, (STEPS, BATCH, LENGTH), generator=generator)
    is_ignored = torch.rand(tokens.shape, generator=generator) < 0.2
    return tokens, tokens.masked_fill(is_ignored, -100)


def make_old(path):
    """The names that config.json had before version 5."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    rope["type"] = rope.pop("rope_type")
    config["rope_scaling"] = rope
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config))


def make_base(path):
    weights = {name.removeprefix("transformer."): value for name, value in load_file(path).items()}
    mask = torch.ones(1, 1, 32, 32).tril()
    save_file(weights | {f"h.{i}.attn.bias": mask.clone() for i in range(2)}, path, metadata={"format": "pt"})


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """Folders, each with what the program has made of its model: one process for all."""
    root = tmp_path_factory.mktemp("models")
    tokens, labels = batches()
    for name, config in CASES.items():
        model = made(config).to(torch.bfloat16 if name in BFLOAT16 else torch.float32)
        model.save_pretrained(root / name / "model", max_shard_size="20KB" if name in SHARDED else "1GB")
        assert (root / name / "model/model.safetensors.index.json").exists() == (name in SHARDED)
        if name in OLD:
            make_old(root / name / "model/config.json")
        if name == BASE:
            make_base(root / name / "model/model.safetensors")
        save_file({"tokens": tokens, "labels": labels}, root / name / "batches.safetensors")
    result = subprocess.run([PROGRAM, *CASES], cwd=root, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stderr) == (0, "")  # no warning of torch's, either
    return root


def assert_close(ours, theirs, what="", tolerance=1e-5):
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}")


@pytest.mark.parametrize("name", CASES)
def test_logits_losses_and_gradients(cases, name):
    ours = load_file(cases / name / "out.safetensors")
    tokens, labels = batches()
    tolerance = 0.03 if name in BFLOAT16 else 1e-5
    model = AutoModelForCausalLM.from_pretrained(cases / name / "model")
    with torch.no_grad():
        assert_close(ours["logits"], model.eval()(tokens[0]).logits, "logits", tolerance)
    torch.manual_seed(1)
    loss = model.train()(tokens[0], labels=labels[0]).loss
    loss.backward()
    assert_close(ours["loss"], loss.detach(), "loss", tolerance)
    gradients = {f"gradient.{key}": value.grad for key, value in model.named_parameters()}
    assert gradients.keys() == {key for key in ours if key.startswith("gradient.")}
    for key, gradient in gradients.items():
        assert_close(ours[key], gradient, key, tolerance)


@pytest.mark.parametrize("name", CASES)
def test_training(cases, name):
    """With dropout, too: both take the same random numbers."""
    tokens, labels = batches()
    model = AutoModelForCausalLM.from_pretrained(cases / name / "model").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    torch.manual_seed(2)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(tokens[step], labels=labels[step]).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    ours = load_file(cases / name / "out.safetensors")["losses"]
    assert_close(ours.double(), torch.tensor(losses).double(), tolerance=0.03 if name in BFLOAT16 else 1e-5)


def loaded(folder):
    """By transformers, which finds nothing missing and nothing too many."""
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()) or Path(folder).parent.name == BASE, report  # whose masks nobody reads
    return model


@pytest.mark.parametrize("name", CASES)
def test_folders_come_back(cases, name):
    theirs, ours = loaded(cases / name / "model"), loaded(cases / name / "copied")
    assert type(ours) is type(theirs)
    for key, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[key], value), key
    skipped = {"_name_or_path", "transformers_version"}
    configs = [{k: v for k, v in model.config.to_dict().items() if k not in skipped} for model in (ours, theirs)]
    assert configs[0] == configs[1]


@pytest.mark.parametrize("name", ["gpt2", "qwen3-tied"])
def test_a_trained_model_in_several_files(cases, name):
    assert len(list((cases / name / "trained").glob("model-*.safetensors"))) > 1
    tokens, _ = batches()
    with torch.no_grad():
        after, before = (loaded(cases / name / part)(tokens[0]).logits for part in ("trained", "model"))
    assert (after - before).abs().max() > 0.01


@pytest.mark.parametrize("name", ["gpt2", "llama-biases", "qwen3"])
def test_random_weights_are_distributed_alike(cases, name):
    torch.manual_seed(5)
    theirs, ours = AutoModelForCausalLM.from_config(CASES[name]), loaded(cases / name / "random")
    for key, value in theirs.named_parameters():
        other = ours.get_parameter(key)
        if value.std() == 0:
            assert torch.equal(other, value), key
        else:
            assert other.std().item() == pytest.approx(value.std().item(), rel=0.15), key
            assert other.mean().abs() < 0.15 * other.std(), key
            assert torch.equal(other.any(-1), value.any(-1)), key  # the padding's embedding is zero
