"""Installs PyTorch into the environment of this Python, and shows what is fetched.

python tools/install_torch.py torch==VERSION [--cpu-index URL]

For Linux on x86-64 the public registry has the build for CUDA alone: about 3 GB to fetch and 5 GB
on disk. A machine without a GPU takes the CPU build from PyTorch's own index if that answers, or
from a wheel that pip finds on disk: its version ends with ``+cpu``, which pip prefers to the plain
one.
"""

import argparse
import importlib.metadata
import json
import platform
import shlex
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pip_progress

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
ANSWER_TIMEOUT_S = 5
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install")


def has_gpu() -> bool:
    """Return whether NVIDIA's driver has found a GPU."""
    return any(Path("/proc/driver/nvidia/gpus").glob("*"))


def index_answers(index: str) -> bool:
    """Return whether a package index has PyTorch and can be reached."""
    try:
        address = f"{index.rstrip('/')}/torch/"
        with urllib.request.urlopen(address, timeout=ANSWER_TIMEOUT_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def index_options(cpu_index: str) -> list[str]:
    """Return pip's options for the build that fits this machine."""
    has_choice = sys.platform == "linux" and platform.machine() == "x86_64"
    if not has_choice or has_gpu() or not index_answers(cpu_index):
        return []
    return ["--extra-index-url", cpu_index]


def packages_to_fetch(arguments: list[str]) -> list[dict[str, Any]]:
    """Return pip's report of what it would install.

    Raises:
        SystemExit: pip has found no version; its message is printed.
    """
    asked = [*PIP, "--quiet", "--dry-run", "--report", "-", *arguments]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"\n$ {shlex.join(asked)}\n{done.stderr}", file=sys.stderr)
        raise SystemExit(done.returncode)
    found: list[dict[str, Any]] = json.loads(done.stdout)["install"]
    return found


def size(address: str) -> int:
    """Return the size of a file of an index or of the disk in bytes; 0 if unknown."""
    parts = urllib.parse.urlsplit(address)
    try:
        if parts.scheme == "file":
            return Path(urllib.request.url2pathname(parts.path)).stat().st_size
        request = urllib.request.Request(address, method="HEAD")
        with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as answer:
            return int(answer.headers.get("Content-Length", 0))
    except (OSError, ValueError):
        return 0


def describe(packages: list[dict[str, Any]], megabytes: float) -> str:
    """Return one line: which build, how many packages, how many megabytes."""
    by_name = {each["metadata"]["name"].lower().replace("_", "-"): each for each in packages}
    version = by_name["torch"]["metadata"]["version"]
    is_cuda = any(name.startswith("nvidia-") for name in by_name)
    cpu = "CPU build" if version.endswith("+cpu") else "build of the package index"
    build = "build for CUDA, 5 GB on disk" if is_cuda else cpu
    number = f"{len(packages)} package{'s' if len(packages) > 1 else ''}"
    return f"PyTorch {version} ({build}; {number}, {megabytes:,.0f} MB)"


def main() -> int:
    """Install the requested version, unless it is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("requirement", metavar="torch==VERSION")
    parser.add_argument("--cpu-index", default=CPU_INDEX, metavar="URL")
    given = parser.parse_args()
    try:
        installed = importlib.metadata.version("torch").partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        installed = ""
    if given.requirement == f"torch=={installed}":
        return 0
    if sys.stdout.isatty():
        print("PyTorch: searching the build for this machine", end="", flush=True)
    options = index_options(given.cpu_index)
    packages = packages_to_fetch([*options, given.requirement])
    total = sum(size(package["download_info"]["url"]) for package in packages)
    pip_progress.install(
        Path(sys.executable),
        describe(packages, total / 1e6),
        [*options, given.requirement],
        packages=len(packages),
        size=total,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
