"""Files of tokens against what transformers' tokenizers make of the same texts."""

import json
import zlib

import pytest
import transformers
from safetensors import safe_open
from tokenizers import ByteLevelBPETokenizer

from fairshard.tokenize import main
from support.pages import ROOT

END = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a model, of which only the tokenizer is there, made of our own README."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train([str(ROOT / "README.md")], vocab_size=400, show_progress=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": [END, 5]}))
    return folder


def test_documents_become_tokens(model, tmp_path, capsys):
    text, lines = (ROOT / "LICENSE").read_text(), [f"line {i}\nüñ {'x' * i}" for i in range(1100)]
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps({"body": line}) for line in lines) + "\n\n")
    out = tmp_path / "tokens.safetensors"
    main([str(model), str(out), str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl"), "--field", "body"])
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(model / "tokenizer.json"))
    expected = [token for document in [text, *lines] for token in [*theirs(document).input_ids, END]]
    with safe_open(out, "numpy") as file:
        tokens = file.get_tensor("tokens")
        crc = str(zlib.crc32((model / "tokenizer.json").read_bytes()))
        assert file.metadata() == {"vocab_size": str(len(theirs)), "end_token": str(END), "tokenizer_crc32": crc}
    assert tokens.dtype == "uint16"
    assert tokens.tolist() == expected
    assert capsys.readouterr().out == f"{out}: {len(expected)} tokens of 1101 document(s)\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.jsonl", "tokens.safetensors"]


def test_a_large_vocabulary_has_wider_numbers(model, tmp_path):
    (tmp_path / "a.txt").write_text("a")
    main([str(model), str(tmp_path / "out"), str(tmp_path / "a.txt"), "--end", "100000"])
    with safe_open(tmp_path / "out", "numpy") as file:
        tokens = file.get_tensor("tokens")
    assert tokens.dtype == "uint32"
    assert tokens[-1] == 100000


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.md", "x", r"a\.md: a text is a \.txt file, or a \.jsonl file"),
        ("a.jsonl", '{"text": "x"}\n{"txt": 1}', r"a\.jsonl:2: there is no string 'text' in it"),
        ("a.jsonl", "x", r"a\.jsonl:1: not JSON: x"),
        ("a.jsonl", "", r"out: there are no documents"),
        ("a.txt", "\udcff", r"a\.txt: not UTF-8"),
        ("a.txt", None, r"No such file.*a\.txt"),
        ("out", "x", r"out exists: choose another name"),
    ],
)
def test_what_is_wrong_is_named_and_leaves_nothing(model, tmp_path, name, text, words):
    if text is not None:
        (tmp_path / name).write_text(text, encoding="utf-8", errors="surrogateescape")
    before = list(tmp_path.iterdir())
    with pytest.raises(SystemExit, match=f"^fairshard: .*{words}"):
        main([str(model), str(tmp_path / "out"), str(tmp_path / name)])
    assert list(tmp_path.iterdir()) == before


def test_a_model_without_an_end_of_text_is_named(model, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SystemExit, match=r"config\.json: there is no 'eos_token_id'.*--end"):
        main([str(tmp_path), str(tmp_path / "out"), "a.txt"])
    with pytest.raises(SystemExit, match=r"nowhere/tokenizer\.json: No such file"):
        main([str(tmp_path / "nowhere"), str(tmp_path / "out"), "a.txt"])
