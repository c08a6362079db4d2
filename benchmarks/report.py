"""Makes the tables and pictures of docs/performance.md and docs/gpu.md from benchmarks/results/*.json.

    python benchmarks/report.py            # writes them
    python benchmarks/report.py --check    # says whether pages and results agree

The pages are written by hand around blocks that begin with `<!-- made: NAME -->` and end with `<!-- end -->`; only what
is between them is made here. A block without results says so; a file of results that no block shows is an error.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import gpu_tables
import machine
import soak_tables
from pictures import bars, lines, panels
from systems import SYSTEMS

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
PAGES = [DOCS / "performance.md", DOCS / "gpu.md"]
BLOCK = re.compile(r"(<!-- made: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
NOT_MEASURED = "Not measured yet.\n"


class Report:
    def __init__(self) -> None:
        paths = sorted((HERE / "results").glob("*.json"))
        contents = {path.stem: json.loads(path.read_text()) for path in paths}
        #: Others have pages of their own, and no "about".
        self.results = {name: found for name, found in contents.items() if "about" in found}
        self.pictures: dict[str, str] = {}
        self.shown: set[str] = set()

    def block(self, name: str) -> str:
        makers: dict[str, Callable[[str], str]] = {
            "growth-tensors": self._growth_tensors,
            "growth-ranks": self._growth_ranks,
            "checkpoints": self._checkpoints,
            "sharded-overheads": self._overheads,
            "sharded-memory-60m-2": self._memory,
            "offload-peers": self._offload,
        }
        source = "growth" if name.startswith("growth") else name
        if source not in self.results:
            return NOT_MEASURED
        self.shown.add(source)
        if source == "gpu-training":  # each row may be of another run
            return "\n".join(gpu_tables.section(row) for row in self.results[source]["rows"].values())
        if source == "soak":
            return self._soak(source)
        return makers.get(name, self._sharded)(source) + f"\n{machine.described(self.results[source]['about'])}\n"

    def _sharded(self, name: str) -> str:
        found = self.results[name]
        work, systems = found["work"], found["systems"]
        if not systems:
            return f"Not run: {found['not_run']['all']}.\n"
        fastest = min(row["ms"] for row in systems.values())
        rows = [
            "| | ms/step | range | x fastest | memory, MB | sent per step, MB |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for system, row in systems.items():
            relative = row["ms"] / fastest
            rows.append(
                f"| {_bold(SYSTEMS[system])} | {row['ms']:.0f} | {_range(row['rounds_ms'])} | {relative:.2f} "
                f"| {row['memory'] / 1e6:.0f} | {row['sent'] / 1e6:.1f} |"
            )
        for system, reason in found["not_run"].items():
            rows.append(f"| {SYSTEMS[system].label} | not run: {reason.replace('|', '/')} | | | | |")
        self.pictures[name] = bars(
            [SYSTEMS[system].label.replace("`", "") for system in systems],
            [(row["ms"], min(row["rounds_ms"]), max(row["rounds_ms"])) for row in systems.values()],
            [row["memory"] / 1e6 for row in systems.values()],
            [SYSTEMS[system].is_ours for system in systems],
        )
        title = f"{self._parameters(found) / 1e6:.1f}M parameters, {work['ranks']} ranks, batch {work['batch']} a rank"
        return f"![{title}](performance-{name}.svg)\n\n" + "\n".join(rows) + f"\n\n{self._formula(found)}\n"

    def _memory(self, name: str) -> str:
        found = self.results[name]
        model = 4 * self._parameters(found)
        rows = ["| | whole run, MB | later steps | resident | in models |", "| --- | --- | --- | --- | --- |"]
        for system, row in found["systems"].items():
            sizes = " | ".join(f"{row[key] / 1e6:.0f}" for key in ("peak", "later_peak", "resident"))
            rows.append(f"| {_bold(SYSTEMS[system])} | {sizes} | {row['resident'] / model:.2f} |")
        for system, reason in found["not_run"].items():
            rows.append(f"| {SYSTEMS[system].label} | not run: {reason.replace('|', '/')} | | | |")
        work = (
            f"{model / 4e6:.1f}M parameters, {found['work']['ranks']} ranks, 3 steps; a model is {model / 1e6:.0f} MB."
        )
        return "\n".join(rows) + f"\n\n{work}\n"

    @staticmethod
    def _parameters(found: dict) -> int:
        return next(iter(found["systems"].values()))["parameters"]

    def _formula(self, found: dict) -> str:
        work = found["work"]
        ranks, weights = work["ranks"], 4 * self._parameters(found)
        besides = found["alone"] - 3 * weights
        bound = 3 * weights / ranks + besides
        sent = 2 * weights * (ranks - 1) / ranks
        return (
            f"{weights / 4e6:.1f}M parameters, {ranks} ranks, {_rounds(work)} of {work['steps']} "
            f"steps. The least for sharded gradients and states: (gradients + states)/N + what one rank alone needs "
            f"besides = {bound / 1e6:.0f} MB without any bucket; 2 x weights x (N-1)/N = {sent / 1e6:.1f} MB sent."
        )

    def _overheads(self, name: str) -> str:
        systems = self.results[name]["systems"]
        rows = ["| | ms/step | range | with it | range | costs |", "| --- | --- | --- | --- | --- | --- |"]
        pairs = [
            ("AdaScale, on ours with SGD", "sgd", "adascale"),
            ("ShardedGradScaler, on ours with AdamW", "gradients", "gradients-scaled"),
            ("torch.amp.GradScaler, on DDP with AdamW", "ddp", "ddp-scaled"),
        ]
        for label, plain, other in pairs:
            if plain in systems and other in systems:
                a, b = systems[plain], systems[other]
                rows.append(
                    f"| {label} | {a['ms']:.1f} | {_range(a['rounds_ms'])} | {b['ms']:.1f} | {_range(b['rounds_ms'])} "
                    f"| {100 * (b['ms'] / a['ms'] - 1):+.1f} % |"
                )
        return "\n".join(rows) + "\n"

    def _offload(self, name: str) -> str:
        labels = {
            "device": "everything on the GPU",
            "ours": "**ours, OffloadModel**",
            "ours-least": "**ours, `prefetch=1`, `offload_activations`**",
            "fsdp": "FSDP2, CPU offload",
            "fairscale": "FairScale OffloadModel",
            "deepspeed": "DeepSpeed ZeRO-3 offload",
        }
        rows = ["| | ms/step | range | GPU memory, GB |", "| --- | --- | --- | --- |"]
        bounds = []
        for found in self.results[name]["rows"]:
            for system, row in found["systems"].items():
                cells = f"{row['ms']:.0f} | {_range(row['rounds_ms'])} | {row['device_gb']:.2f}"
                rows.append(f"| {found['row']}: {labels[system]} | {cells} |")
                if system == "ours":
                    bounds.append(f"\n{found['row']}, last round of ours: {_bounds(row)}.\n")
            for system, reason in found["not_run"].items():
                rows.append(f"| {found['row']}: {labels[system]} | not run: {reason.replace('|', '/')} | | |")
        return "\n".join(rows) + "\n" + "".join(bounds)

    def _checkpoints(self, name: str) -> str:
        found = self.results[name]
        seconds = {key: statistics.median(values) for key, values in found["seconds"].items()}
        size = found["work"]["bytes"]
        labels = {
            "dd_write": "`dd` writes, with fsync",
            "save": "**ours, `save`**",
            "call": "**ours, `save(blocking=False)` returns after**",
            "torch_save": "`torch.save`, a file for each rank, with fsync",
            "dcp_save": "`torch.distributed.checkpoint.save`",
            "dd_read": "`dd` reads, after the kernel was asked to drop its cache",
            "load": "**ours, `load`, likewise**",
            "torch_load": "`torch.load`, likewise",
            "dcp_load": "`torch.distributed.checkpoint.load`, likewise",
        }
        rows = ["| | seconds | range | MB/s | times dd's rate |", "| --- | --- | --- | --- | --- |"]
        for key, label in labels.items():
            against = seconds["dd_read" if "load" in key or "read" in key else "dd_write"]
            values = found["seconds"][key]
            rate = "" if key == "call" else f"{size / seconds[key] / 1e6:.0f}"
            ratio = "" if key == "call" else f"{against / seconds[key]:.2f}"
            rows.append(f"| {label} | {seconds[key]:.2f} | {min(values):.2f}-{max(values):.2f} | {rate} | {ratio} |")
        work = found["work"]
        return "\n".join(rows) + f"\n\n{size / 2**20:.0f} MiB on {work['ranks']} ranks, {work['rounds']} rounds.\n"

    def _soak(self, name: str) -> str:
        modes = self.results[name]["modes"]
        self.pictures[name] = panels(soak_tables.resident(modes), "resident memory, MiB")
        return f"![resident memory over the run](performance-{name}.svg)\n\n" + soak_tables.table(modes)

    def _growth_tensors(self, name: str) -> str:
        tensors = self.results[name]["tensors"]
        labels = {
            "plain": "not wrapped",
            "ddp": "DDP",
            "replicated": "**ours, replicated**",
            "gradients": "**ours, gradients**",
        }
        counts = [row["tensors"] for row in tensors["plain"]]
        rows = [
            "| microseconds a tensor | " + " | ".join(f"{count:,}" for count in counts) + " |",
            "| --- |" + " --- |" * len(counts),
        ]
        curves = {}
        for phase, title in (("step_all", "a whole step"), ("backward", "backward"), ("wrap", "wrapping")):
            for system, found in tensors.items():
                values = [1e6 * _phase(row["median"], phase) / row["tensors"] for row in found]
                if phase != "wrap" or system != "plain":
                    cells = " | ".join(f"{value:.2f}" for value in values)
                    rows.append(f"| {title}, {labels[system]} | {cells} |")
                if phase == "step_all":
                    curves[labels[system].strip("*")] = list(zip(counts, values, strict=True))
        self.pictures["growth-tensors"] = lines(curves, "tensors", "microseconds a tensor and step")
        return "![step against tensors](performance-growth-tensors.svg)\n\n" + "\n".join(rows) + "\n"

    def _growth_ranks(self, name: str) -> str:
        found = self.results[name]["ranks"]
        rows = ["| ranks | plan, ms | wrap, ms | first step, ms | step, ms |", "| --- | --- | --- | --- | --- |"]
        for row in found:
            middle = row["median"]
            cells = [f"{1e3 * middle[key]:.3g}" for key in ("plan", "wrap", "first_step", "step")]
            rows.append(f"| {row['ranks']} | " + " | ".join(cells) + " |")
        curves = {
            label: [(row["ranks"], 1e3 * row["median"][key]) for row in found]
            for key, label in (("plan", "plan"), ("wrap", "wrap"), ("first_step", "first step"), ("step", "step"))
        }
        self.pictures["growth-ranks"] = lines(curves, "ranks, as threads of one process", "milliseconds")
        return "![cost against ranks](performance-growth-ranks.svg)\n\n" + "\n".join(rows) + "\n"


def _bold(system) -> str:
    return f"**{system.label}**" if system.is_ours else system.label


def _range(values: list[float]) -> str:
    return f"{min(values):.0f}-{max(values):.0f}"


def _rounds(work: dict) -> str:
    more = work.get("more_rounds", 0)
    others = f" ({work['rounds'] + more} for those close to the fastest)" if more else ""
    return f"{work['rounds']} rounds{others}"


def _bounds(row: dict) -> str:
    labels = {"compute": "compute", "link_in": "to the GPU", "link_out": "from it", "optimizer": "AdamW on the CPU"}
    parts = ", ".join(f"{label} {row[f'{key}_ms']:.0f} ms" for key, label in labels.items())
    return f"{parts}; the step takes {row['times_bound']:.2f} times the longest"


def _phase(median: dict, phase: str) -> float:
    if phase == "step_all":
        return sum(median[key] for key in ("forward", "backward", "step", "zero_grad"))
    return median[phase]


def make(*pages: str) -> tuple[list[str], dict[str, str]]:
    """The pages with their blocks made anew, and the pictures by their names."""
    report = Report()
    made = [BLOCK.sub(lambda found: found[1] + report.block(found[2]) + found[4], page) for page in pages]
    hidden = report.results.keys() - report.shown
    if hidden:
        names = " and ".join(f"docs/{page.name}" for page in PAGES)
        raise SystemExit(f"{names} have no block for the results {', '.join(sorted(hidden))}")
    return made, {f"performance-{name}.svg": picture for name, picture in report.pictures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if something would change")
    options = parser.parse_args()
    made, pictures = make(*(page.read_text() for page in PAGES))
    files = dict(zip(PAGES, made, strict=True)) | {DOCS / name: picture for name, picture in pictures.items()}
    stale = [path.name for path, text in files.items() if not path.exists() or path.read_text() != text]
    stale += [path.name for path in DOCS.glob("performance-*.svg") if path not in files]
    if options.check and stale:
        sys.exit(f"not what the results say: {', '.join(stale)}. Run python benchmarks/report.py")
    if not options.check:
        for path, text in files.items():
            path.write_text(text)
    print("the pages agree with benchmarks/results" if options.check else f"wrote {len(files)} files")


if __name__ == "__main__":
    main()
