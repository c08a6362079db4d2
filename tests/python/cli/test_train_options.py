"""Options that are wrong, or do not go together, are refused with the reason; a file may hold them."""

import pytest

from support.trainer import read_log, run, train, trainer, write_text


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("data"))


BAD = [
    ({"data": "/nonexistent"}, "/nonexistent"),
    ({"ranks": 0}, "--ranks"),
    ({"width": 33}, "--width: 33 is not a multiple of --heads 2"),
    ({"steps": "many"}, "many"),
    ({"surprise": 1}, "--surprise"),
    ({"shard": "surprise"}, "--shard: surprise"),
    ({"size": "surprise"}, "nano"),
    ({"lr": "inf"}, "--lr: inf"),
    ({"batch": 9, "ranks": 2}, "--batch: 9 windows cannot be shared evenly by 2 rank(s)"),
    ({"batch": 8, "accumulate": 3}, "--accumulate 3"),
    ({"device_budget": "4GiB"}, "--device-budget: means nothing without --offload"),
    ({"offload": 2, "device_budget": "4 parsecs"}, "--device-budget"),
    ({"offload": 2, "host_budget": "4GiB"}, "--host-budget: needs --spill-dir"),
    ({"slowmo_frequency": 3}, "--slowmo-frequency: means nothing without --slowmo or --diloco"),
    ({"resume": True}, "--resume: means nothing without --save"),
    ({"trace_steps": 3}, "--trace-steps: means nothing without --trace"),
]

# Pairs of options that make no sense together: both are named.
CONFLICTS = [
    ({"slowmo": True, "diloco": True, "ranks": 2}, "--slowmo", "--diloco"),
    ({"slowmo": True, "shard": "optimizer", "ranks": 2}, "--slowmo", "--shard"),
    ({"slowmo": True, "step_in_backward": True, "ranks": 2}, "--step-in-backward", "--shard gradients"),
    ({"diloco": True, "shard": "optimizer", "ranks": 2}, "--diloco", "--shard"),
    ({"slowmo": True, "offload": 2, "ranks": 2}, "--slowmo", "--offload"),
    ({"diloco": True, "adascale": True, "ranks": 2}, "--diloco", "--adascale"),
    ({"offload": 2, "adascale": True, "ranks": 2}, "--offload", "--adascale"),
    ({"adascale": True, "checkpoint_activation": True, "ranks": 2}, "--adascale", "--checkpoint-activation"),
    ({"adascale": True, "ranks": 1}, "--adascale", "--accumulate 2"),
    ({"step_in_backward": True, "shard": "optimizer", "ranks": 2}, "--step-in-backward", "--shard"),
    ({"step_in_backward": True, "offload": 2, "ranks": 2}, "--step-in-backward", "--offload"),
    ({"step_in_backward": True, "diloco": True, "ranks": 2}, "--step-in-backward", "--shard gradients"),
    ({"step_in_backward": True, "clip": 0.5, "ranks": 2}, "--step-in-backward", "--clip"),
    ({"step_in_backward": True, "amp": "fp16", "ranks": 2}, "--step-in-backward", "--amp fp16"),
    ({"step_in_backward": True, "adascale": True, "ranks": 2}, "--step-in-backward", "--adascale"),
    ({"step_in_backward": True, "accumulate": 2, "ranks": 2}, "--step-in-backward", "--accumulate"),
    ({"overlap_gather": True, "shard": "none", "ranks": 2}, "--overlap-gather", "--shard optimizer"),
    ({"overlap_gather": True, "slowmo": True, "ranks": 2}, "--overlap-gather", "--slowmo"),
    ({"release_parameters": True, "offload": 2, "ranks": 2}, "--release-parameters", "--offload"),
    ({"slowmo": True, "fragments": 2, "ranks": 2}, "--slowmo", "--fragments"),
    ({"diloco": True, "localsgd_frequency": 2, "ranks": 2}, "--diloco", "--localsgd-frequency"),
    (
        {"diloco": True, "fragment_delay": 9, "slowmo_frequency": 9, "ranks": 2},
        "--fragment-delay",
        "--slowmo-frequency",
    ),
    ({"slowmo": True, "nodes": 2, "ranks": 3, "batch": 9}, "--nodes", "3 ranks"),
]


@pytest.mark.parametrize(("options", "words"), BAD)
def test_bad_options(text, options, words):
    result = run(*trainer(text, **options))
    assert result.returncode == 2, result.stderr
    assert words in result.stderr


@pytest.mark.parametrize(("options", "first", "second"), CONFLICTS)
def test_options_that_do_not_go_together(text, options, first, second):
    result = run(*trainer(text, **options))
    assert result.returncode == 2, result.stderr
    assert first in result.stderr and second in result.stderr


def test_ranks_that_contradict_a_launcher(text):
    result = run(*trainer(text, ranks=3), RANK="0", WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT="1")
    assert result.returncode == 2
    assert "--ranks: 3 contradicts torchrun, which has started 2" in result.stderr


def test_help_has_defaults(text):
    result = run(*trainer(text), "--help")
    assert result.returncode == 0
    for words in ("--shard", "=gradients", "--steps", "=600", "--checkpoint-activation"):
        assert words in result.stdout


def test_a_file_of_options(text, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text('steps = 5\nshard = "none"\nadascale = true\naccumulate = 2\n# a comment\nslowmo = false\n')
    log = tmp_path / "log.jsonl"
    result = run(*trainer(text, steps=None, log=log, config=config), "--shard=optimizer")
    assert result.returncode == 0, result.stderr
    options = read_log(log).of_kind("run")[0]["options"]
    assert (options["steps"], options["accumulate"], options["adascale"]) == (5, 2, True)
    assert options["slowmo"] is False
    assert options["shard"] == "optimizer"  # the command line goes first
    assert len(read_log(log).steps) == 5


@pytest.mark.parametrize(
    ("content", "words"),
    [("surprise = 1", "surprise"), ("steps = many", "many"), ("config = other.toml", "config"), ("[x]\ny = 1", "'x.")],
)
def test_a_bad_file_of_options(text, tmp_path, content, words):
    config = tmp_path / "run.toml"
    config.write_text(content)
    result = run(*trainer(text, steps=None, config=config))
    assert result.returncode == 2, result.stderr
    assert words in result.stderr


def test_a_seed_gives_the_same_run_again_and_another_gives_another(text, tmp_path):
    runs = [train(text, tmp_path / f"{n}.jsonl", ranks=2, seed=seed) for n, seed in enumerate((1, 1, 2))]
    assert runs[0].losses == runs[1].losses
    assert runs[0].losses[0] != runs[2].losses[0]


def test_a_folder_is_a_text(tmp_path):
    (tmp_path / "data/deep").mkdir(parents=True)
    whole = write_text(tmp_path).read_text()
    (tmp_path / "data/a.txt").write_text(whole[:10007])
    (tmp_path / "data/b.txt").write_text("")
    (tmp_path / "data/deep/c.md").write_text(whole[10007:])
    (tmp_path / "data/deep/d.bin").write_text("not this" * 1000)
    from_file = train(tmp_path / "text.txt", tmp_path / "1.jsonl")
    from_folder = train(tmp_path / "data", tmp_path / "2.jsonl")
    assert from_folder.losses == from_file.losses
