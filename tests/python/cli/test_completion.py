"""What a shell completes is what the program has."""

import functools
import re
import subprocess

import pytest

from support.trainer import PROGRAM


@functools.cache  # the program takes its time to load torch
def script_for(shell):
    return subprocess.run([PROGRAM, "completion", shell], capture_output=True, text=True, check=True).stdout


def completed(words):
    """What bash offers for the last of these words."""
    script = f"""eval "$0"
        COMP_WORDS=({" ".join(f"'{word}'" for word in words)})
        COMP_CWORD={len(words) - 1}
        _fairshard
        printf '%s\\n' "${{COMPREPLY[@]}}" """
    result = subprocess.run(["bash", "-c", script, script_for("bash")], capture_output=True, text=True, check=True)
    assert not result.stderr
    return result.stdout.split()


def options_of(command):
    """As the command's help has them."""
    text = subprocess.run([PROGRAM, command, "--help"], capture_output=True, text=True, check=True).stdout
    return re.findall(r"^  (?:-\w,\s*)?(--[\w-]+)", text, flags=re.M)


def test_commands_and_all_of_their_options():
    commands = completed(["fairshard", ""])
    assert {"train", "plan", "completion", "--version"} <= set(commands)
    assert completed(["fairshard", "con"]) == ["consolidate"]
    for command in (word for word in commands if not word.startswith("-")):
        assert sorted(completed(["fairshard", command, "--"])) == sorted(options_of(command)), command


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "--shard", ""], ["none", "optimizer", "gradients"]),
        (["train", "--shard", "=", "g"], ["gradients"]),  # as bash divides --shard=g
        (["train", "--shard", "="], ["none", "optimizer", "gradients"]),
        (["train", "--resu"], ["--resume", "--resume-from"]),
        (["train", "--resume", "--st"], ["--steps", "--step-in-backward"]),
        (["completion", ""], ["bash", "zsh"]),
    ],
)
def test_values(words, expected):
    assert sorted(completed(["fairshard", *words])) == sorted(expected)


def test_paths_are_files(tmp_path):
    (tmp_path / "run.jsonl").touch()
    assert completed(["fairshard", "report", f"{tmp_path}/r"]) == [f"{tmp_path}/run.jsonl"]
    assert completed(["fairshard", "train", "--log", f"{tmp_path}/r"]) == [f"{tmp_path}/run.jsonl"]


def test_another_shell_is_refused():
    result = subprocess.run([PROGRAM, "completion", "fish"], capture_output=True, text=True)
    assert result.returncode == 2
    assert "fish" in result.stderr
    assert script_for("zsh").endswith(script_for("bash"))
    assert "bashcompinit" in script_for("zsh")
