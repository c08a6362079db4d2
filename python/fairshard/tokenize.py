"""``python -m fairshard.tokenize MODEL OUT TEXT...``: texts as tokens of a model, in a file for training in C++.

The file is a safetensors file with one tensor, ``tokens`` (uint16 or uint32): all documents one after another, each
with the model's end of text after it. Its metadata has ``vocab_size``, ``end_token``, and as ``tokenizer_crc32`` a sum
of the tokenizer.json, by which the trainer knows it again. Needs the package tokenizers
(``pip install fairshard[tokenize]``).
"""

import argparse
import json
import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO

_HEADER_BYTES = 512
_DOCUMENTS_AT_ONCE = 1000


def read_documents(paths: Sequence[str | Path], field: str = "text") -> Iterator[str]:
    """The documents of files: a ``.txt`` is one, and a ``.jsonl`` has one in ``field`` of each line.

    Raises ValueError that names the file and the line of what is neither.
    """
    for path in map(Path, paths):
        try:
            yield from _documents_in(path, field)
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not UTF-8: {error}") from error


def _documents_in(path: Path, field: str) -> Iterator[str]:
    if path.suffix == ".txt":
        yield path.read_text(encoding="utf-8")
    elif path.suffix == ".jsonl":
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _document_of(line, field, f"{path}:{number}")
    else:
        raise ValueError(f"{path}: a text is a .txt file, or a .jsonl file with an object in each line")


def _document_of(line: str, field: str, what: str) -> str:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{what}: not JSON: {line[:80].strip()}") from error
    if not isinstance(value, dict) or not isinstance(value.get(field), str):
        raise ValueError(f"{what}: there is no string {field!r} in it: {line[:80].strip()}")
    return value[field]


def tokenize(model: str | Path, out: str | Path, documents: Iterable[str], end: int | None = None) -> tuple[int, int]:
    """Writes the tokens of documents, and returns how many documents and tokens there are.

    ``model`` is a folder with the model's ``tokenizer.json``, and ``end`` the token after each document, if it is not
    the ``eos_token_id`` of its ``config.json``. Documents are read a thousand at a time. Raises FileExistsError if
    ``out`` exists, and ValueError if there is nothing to write; ``out`` is there when all is written.
    """
    import numpy as np
    from tokenizers import Tokenizer

    out, rest = Path(out), iter(documents)
    file = Path(model) / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the package has no class of its own
        raise ValueError(f"{file}: {error}") from error
    end = _end_of_text(Path(model)) if end is None else end
    vocabulary = max(tokenizer.get_vocab_size(), end + 1)
    dtype = np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")
    if out.exists():
        raise FileExistsError(f"{out} exists: choose another name")
    found, count = 0, 0
    with _written(out) as written:
        written.write(bytes(_HEADER_BYTES))  # what belongs there is known at the end
        while some := list(islice(rest, _DOCUMENTS_AT_ONCE)):
            for encoded in tokenizer.encode_batch(some, add_special_tokens=False):
                written.write(np.array([*encoded.ids, end], dtype).tobytes())
                count += len(encoded.ids) + 1
            found += len(some)
        if found == 0:
            raise ValueError(f"{out}: there are no documents to write")
        written.seek(0)
        metadata = {"vocab_size": vocabulary, "end_token": end, "tokenizer_crc32": zlib.crc32(file.read_bytes())}
        written.write(_header(count, dtype.itemsize, {name: str(value) for name, value in metadata.items()}))
    return found, count


def _end_of_text(model: Path) -> int:
    """As config.json has it: a number, or several of which the first is meant."""
    config = model / "config.json"
    value = json.loads(config.read_text()).get("eos_token_id")
    value = value[0] if isinstance(value, list) and value else value
    if not isinstance(value, int):
        raise ValueError(f"{config}: there is no 'eos_token_id': say which token ends a document (--end)")
    return value


@contextmanager
def _written(path: Path) -> Iterator[BinaryIO]:
    """A file that gets its name when all has been written, and is removed otherwise."""
    pending = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with pending.open("xb") as file:
            yield file
        pending.rename(path)
    finally:
        pending.unlink(missing_ok=True)


def _header(count: int, width: int, metadata: dict[str, str]) -> bytes:
    """As safetensors has it, filled up with spaces."""
    tokens = {"dtype": f"U{8 * width}", "shape": [count], "data_offsets": [0, count * width]}
    text = json.dumps({"__metadata__": metadata, "tokens": tokens}).encode()
    room = _HEADER_BYTES - 8
    return room.to_bytes(8, "little") + text.ljust(room)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m fairshard.tokenize", description="Writes texts as tokens of a model, for training in C++."
    )
    parser.add_argument("model", help="a folder with tokenizer.json and config.json")
    parser.add_argument("out", help="the file to write, for instance tokens.safetensors")
    parser.add_argument(
        "texts", nargs="+", metavar="text", help="a .txt file: a document; a .jsonl file: one in each line"
    )
    parser.add_argument(
        "--field", default="text", help="what has the document in a line of a .jsonl file (%(default)s)"
    )
    parser.add_argument("--end", type=int, help="the token after each document (eos_token_id of config.json)")
    given = parser.parse_args(arguments)
    try:
        found, count = tokenize(given.model, given.out, read_documents(given.texts, given.field), given.end)
    except (OSError, ValueError, ImportError) as error:
        sys.exit(f"fairshard: {error}")
    print(f"{given.out}: {count} tokens of {found} document(s)")


if __name__ == "__main__":
    main()
