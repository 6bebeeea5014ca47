"""Create the Python environments of clients that are not ours.

usage: client_environments.py [--map FILE]

One virtual environment for each client and version in ``CLIENTS``, beside those of
``framework_environments.py``. Prints a JSON object with the interpreter of each. Idempotent;
concurrent runs wait for each other.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import time

import framework_environments as frameworks
import uv

CLIENTS = {
    "official-28": ["kubernetes==28.1.0"],
    "official-31": ["kubernetes==31.0.0"],
    "official-35": ["kubernetes==35.0.0"],
    "official-36": ["kubernetes==36.0.2"],
    "asyncio": ["kubernetes_asyncio==36.1.0"],
    "kr8s": ["kr8s==0.20.15"],
    "lightkube": ["lightkube==1.0.1"],
    "kopf": ["kopf==1.45.2", "kubernetes_asyncio==36.1.0"],
    "kubeflow": ["kubeflow==0.5.0"],
}
"""Requirements by environment. The pinned official client is in the environment of the tests."""


def make(name: str, requirements: list[str]) -> pathlib.Path:
    """Create an environment if it does not exist; return its interpreter.

    Raises:
        CalledProcessError: uv could not install the requirements.
    """
    tag = f"python{sys.version_info.major}.{sys.version_info.minor}"
    versions = "-".join(each.replace("==", "-") for each in requirements)
    folder = frameworks.root().with_name("clients") / f"{name}-{tag}-{versions}"
    with uv.locked(folder.with_name(folder.name + ".lock")):
        if not (folder / frameworks.COMPLETE).exists():
            began = time.monotonic()
            shutil.rmtree(folder, ignore_errors=True)
            uv.make_environment(folder, *requirements)
            (folder / frameworks.COMPLETE).touch()
            frameworks.say(f"{name}: installed in {time.monotonic() - began:.0f} s")
    return folder / "bin/python"


def main() -> None:
    """Create all environments and print their interpreters."""
    parser = argparse.ArgumentParser(description="Make the environments of other clients.")
    parser.add_argument("--map", type=pathlib.Path, help="write the map here, do not print")
    chosen = parser.parse_args().map
    try:
        made = {name: str(make(name, needed)) for name, needed in CLIENTS.items()}
    except subprocess.CalledProcessError as error:
        sys.exit(f"cannot make the environment: {error}")
    text = json.dumps(made, indent=2) + "\n"
    if chosen:
        chosen.parent.mkdir(parents=True, exist_ok=True)
        chosen.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
