"""Where and with what something was measured, for the results' files."""

import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _first_value(path: str, key: str) -> str | None:
    for line in Path(path).read_text().splitlines():
        if line.startswith(key):
            return line.split(":", 1)[1].strip()
    return None


def _commit() -> str:
    git = ["git", "-C", str(Path(__file__).parent)]
    found = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*git, "status", "--porcelain", "../src", "../python"], capture_output=True, text=True)
    return found.stdout.strip() + ("+changes" if changed.stdout.strip() else "")


def about() -> dict:
    packages = ("torch", "fairscale", "deepspeed", "numpy", "safetensors")
    kilobytes = int(_first_value("/proc/meminfo", "MemTotal").split()[0])
    return {
        "commit": _commit(),
        "command": shlex.join(["python", _program(), *sys.argv[1:]]),
        "versions": {"python": platform.python_version()} | {p: v for p in packages if (v := _version(p))},
        "machine": {
            "cpu": _first_value("/proc/cpuinfo", "model name") or platform.machine(),
            "cores": os.cpu_count(),
            "memory_gb": round(kilobytes * 1024 / 1e9),
            "kernel": platform.release(),
        },
    }


def _program() -> str:
    return "/".join(Path(sys.argv[0]).parts[-2:])


def described(about: dict) -> str:
    """One line, for a page."""
    versions = ", ".join(f"{package} {version}" for package, version in about["versions"].items())
    machine = about["machine"]
    where = f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_gb']} GB, Linux {machine['kernel']}"
    return f"`{about['command']}` at {about['commit']}: {where}; {versions}."


def write(name: str, figures: dict, folder: Path = RESULTS) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"about": about(), **figures}, indent=1) + "\n")
    return path
