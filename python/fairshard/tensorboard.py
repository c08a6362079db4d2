"""``python -m fairshard.tensorboard RUN.jsonl... DIR``: logs of ``fairshard train --log`` as TensorBoard files.

There is no C++ writer for these files that is kept and packaged; torch has one in Python, for which the package
tensorboard must be installed.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_SCALARS = {"loss": "loss/training", "lr": "lr", "tokens_per_s": "tokens_per_s", "sent_bytes": "sent_bytes"} | {
    name: name for name in ("gain", "loss_scale")
}


def read_log(log: Path) -> list[dict[str, Any]]:
    """The lines of a log, without one at the end that is not complete yet. Raises ValueError that names a bad one."""
    texts = log.read_text().splitlines()
    lines = []
    for number, text in enumerate(texts, 1):
        try:
            lines.append(json.loads(text))
        except ValueError as error:
            if number < len(texts):
                raise ValueError(f"{log}:{number}: not JSON: {text[:80]}") from error
    if not any(line.get("kind") == "run" for line in lines):
        raise ValueError(f"{log}: there is no line of kind \"run\". Is it what 'fairshard train --log' wrote?")
    return lines


def _scalars(line: dict[str, Any]) -> Iterable[tuple[str, float]]:
    if line["kind"] == "validation":
        yield "loss/validation", line["loss"]
    elif line["kind"] == "memory":
        yield f"memory/rank {line['rank']}/peak", line["peak_bytes"]
        for kind, count in line["bytes"].items():
            yield f"memory/rank {line['rank']}/{kind}", count
    elif line["kind"] == "waits":
        for rank, seconds in enumerate(line["waited_s"]):
            yield f"waited/rank {rank}", seconds
    elif line["kind"] == "step":
        for field, tag in _SCALARS.items():
            if line.get(field) is not None:
                yield tag, line[field]
        for phase, seconds in line["split_s"].items():
            yield f"seconds/{phase}", seconds


def write_tensorboard(log: str | Path, folder: str | Path) -> None:
    """Writes one run's log to a folder of its own, which TensorBoard then shows as a run.

    Of a resumed run, steps that were done again count once. Times are those since its first line, before the log's own
    date. Raises ValueError if it is no such log.
    """
    from torch.utils.tensorboard import SummaryWriter  # takes seconds

    log = Path(log)
    lines = read_log(log)
    begun, now = 0.0, 0.0
    found: dict[tuple[str, int], tuple[float, float]] = {}
    with SummaryWriter(str(folder)) as writer:
        for line in lines:
            if line["kind"] == "run":
                begun = now
                found = {key: value for key, value in found.items() if key[1] < line["first_step"]}
                options = "\n".join(f"    {name}: {value}" for name, value in line["options"].items())
                writer.add_text("options", options, line["first_step"])
            now = begun + line.get("time_s", now - begun)
            for tag, value in _scalars(line):
                found[tag, line["step"]] = (value, now)
        start = log.stat().st_mtime - now
        for (tag, step), (value, time) in found.items():
            writer.add_scalar(tag, value, step, walltime=start + time)


def main(arguments: list[str]) -> None:
    """Writes each log to a folder of its name."""
    if len(arguments) < 2:
        sys.exit("python -m fairshard.tensorboard RUN.jsonl... DIR")
    *logs, folder = arguments
    for log in logs:
        try:
            write_tensorboard(log, Path(folder) / Path(log).stem)
        except (OSError, ValueError, ModuleNotFoundError) as error:
            sys.exit(f"fairshard.tensorboard: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
