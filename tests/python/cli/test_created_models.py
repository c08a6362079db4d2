"""`fairshard create` makes folders that transformers loads, `fairshard plan` plans them, and the first run works."""

import json
import re
import subprocess

import pytest
from transformers import AutoModelForCausalLM

from support import pages
from support.trainer import PROGRAM, environment, run, write_text

TINY = ("--layers=2", "--width=32", "--heads=4", "--context=64")
KINDS = ("weights", "gradients", "optimizer")


def create(folder, *options):
    result = run(PROGRAM, "create", folder, *options)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [
        ("gpt2", (), "GPT2LMHeadModel"),
        ("llama", ("--kv-heads=2", "--vocabulary=300"), "LlamaForCausalLM"),
        ("qwen2", ("--tied",), "Qwen2ForCausalLM"),
        ("qwen3", ("--kv-heads=1",), "Qwen3ForCausalLM"),
    ],
)
def test_a_created_model_is_loaded_by_transformers(tmp_path, kind, options, name):
    said = create(tmp_path / "model", f"--type={kind}", *TINY, *options)
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(report.values()), report
    assert said == f"{tmp_path}/model: {name} of {model.num_parameters()} parameters, random\n"
    assert type(model).__name__ == name
    assert model.config.tie_word_embeddings == ("--tied" in options)
    again = run(PROGRAM, "create", tmp_path / "model")
    assert again.returncode == 1 and "exists" in again.stderr


def test_bad_sizes_are_named(tmp_path):
    for options, words in [
        (("--width=33", "--heads=2"), "--width 33 is not a multiple of --heads 2"),
        (("--heads=4", "--kv-heads=3", "--width=64"), "not a multiple of num_key_value_heads, 3"),
        (("--type=mamba",), "--type: mamba"),
    ]:
        result = run(PROGRAM, "create", tmp_path / "model", *options)
        assert result.returncode != 0
        assert words in result.stderr, result.stderr
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("kind", "strategies"),
    [
        (("--type=qwen2", "--tied"), ["gradients", "optimizer+checkpoint", "gradients+offload"]),
        (("--type=qwen3", "--kv-heads=2"), ["none+bf16", "gradients+checkpoint"]),
        (("--type=gpt2",), ["gradients+bf16", "optimizer"]),
    ],
)
def test_a_folder_is_planned_as_it_is_measured(tmp_path, kind, strategies):
    create(tmp_path / "model", *kind, *TINY)
    text = write_text(tmp_path)
    measuring = ("--measure", "--device=cpu", "--threads=1", "--steps=3", f"--data={text}", "--slices=3")
    command = [PROGRAM, "plan", f"--model={tmp_path}/model", "--ranks=2", "--batch=8", "--strategy", *strategies]
    result = run(*command, *measuring, "--json")
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer["parameters"] == AutoModelForCausalLM.from_pretrained(tmp_path / "model").num_parameters()
    assert answer["counts_activations"]
    for row in answer["strategies"]:
        found = row["measured"]
        for kind in KINDS:  # but for what fills up short parameters
            assert row["bytes"][kind] == pytest.approx(found["bytes"][kind], rel=0.01), row
        assert row["bytes"]["host"] == pytest.approx(found["bytes"]["host"], rel=0.01), row
        assert row["bytes"]["peak"] == pytest.approx(found["bytes"]["peak"], rel=0.05), row
    shown = run(*command).stdout
    assert "Activations are not counted" not in shown
    assert f"fairshard train --model {tmp_path}/model --context 64 --batch 8 --ranks 2 --shard " in shown


def test_a_config_alone_is_planned(tmp_path):
    """Also of a model that is too large for this machine."""
    config = {"model_type": "llama", "vocab_size": 128256, "hidden_size": 8192, "intermediate_size": 28672}
    config |= {"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = run(PROGRAM, "plan", "--model", tmp_path, "--ranks=64", "--batch=64", "--device-memory=80GB", "--amp=bf16")
    assert result.returncode == 0, result.stderr
    assert "70553706496 parameters" in result.stdout
    assert re.search(rf"train --model {tmp_path} .* --release-parameters --overlap-gather", result.stdout)
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    refused = run(PROGRAM, "plan", "--model", tmp_path)
    assert refused.returncode == 1 and "the model_type 'mamba' is not supported" in refused.stderr


def test_the_first_run_of_the_page(tmp_path):
    block = next(code for code in pages.code(pages.read("trainer"), "") if "fairshard create" in code)
    for line in block.splitlines():
        command = line.split("#")[0].replace("build/bin/fairshard", str(PROGRAM)).replace("'def '", "def").split()
        small = ["--steps=2", "--batch=2", "--device=cpu"] if command[1] == "train" else []
        paths = [str(tmp_path / word) if re.match(r"(models|runs)/", word) else word for word in command]
        result = subprocess.run([*paths, *small], env=environment(), capture_output=True)  # bytes: it has learnt little
        assert result.returncode == 0, result.stderr
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "models/trained").num_parameters() > 0
