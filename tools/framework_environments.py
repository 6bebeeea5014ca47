"""Create the Python environments of the examples of other frameworks.

usage: framework_environments.py [--image-map FILE] [FRAMEWORK...]

One virtual environment for each ``examples/FRAMEWORK/requirements.txt`` (all of them, unless some
are named), since the frameworks need different versions of shared dependencies; an example without
that file runs in the environment of gangline itself, which has torch. They are in
``$GANGLINE_FRAMEWORKS``, else in ``$XDG_CACHE_HOME/gangline/frameworks`` (``~/.cache/...``), named
after the interpreter and the requirements, so that clones share them and a changed requirement
creates a new one. Prints an image map for ``gangline up --image-map`` that points the image of each
example at its environment. Idempotent; concurrent runs wait for each other.
"""

import argparse
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import bootstrap
import uv

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
COMPLETE = "gangline-complete"
"""Written last: an environment without it is incomplete."""


def examples() -> dict[str, bool]:
    """Frameworks that have examples, and whether each needs its own environment."""
    folders = sorted(path for path in EXAMPLES.iterdir() if path.is_dir())
    return {path.name: (path / "requirements.txt").exists() for path in folders}


def root() -> pathlib.Path:
    """The folder of all environments."""
    if chosen := os.environ.get("GANGLINE_FRAMEWORKS"):
        return pathlib.Path(chosen).absolute()
    return uv.cache() / "frameworks"


def folder_of(framework: str) -> pathlib.Path:
    """Where the environment of ``framework`` belongs, made or not."""
    tag = f"{sys.version_info.major}.{sys.version_info.minor}"
    requirements = (EXAMPLES / framework / "requirements.txt").read_bytes()
    digest = hashlib.sha256(requirements + sys.base_prefix.encode()).hexdigest()[:12]
    return root() / f"{framework}-python{tag}-{digest}"


def make(framework: str) -> pathlib.Path:
    """Create the environment of ``framework`` if it does not exist; return its directory.

    Raises:
        CalledProcessError: pip could not install the requirements, or they contradict each other.
    """
    folder = folder_of(framework)
    with uv.locked(folder.with_suffix(folder.suffix + ".lock")):
        if not (folder / COMPLETE).exists():
            began = time.monotonic()
            say(f"{framework}: installing into {folder}")
            if folder.exists():
                shutil.rmtree(folder)
            install(folder, EXAMPLES / framework / "requirements.txt")
            (folder / COMPLETE).touch()
            say(f"{framework}: installed in {time.monotonic() - began:.0f} s")
    return folder


def install(folder: pathlib.Path, requirements: pathlib.Path) -> None:
    """Create the environment, install and check what ``requirements`` names.

    The wheels are large, and are not cached. Only pip finds a build of torch in a folder that its
    configuration names.
    """
    python = folder / "bin" / "python"
    if re.search("^torch==", requirements.read_text(), re.MULTILINE):
        bootstrap.main(folder)
        pip = [python, "-m", "pip", "--disable-pip-version-check"]
        options = ["--quiet", "--no-cache-dir", "--no-compile", "--requirement", requirements]
        subprocess.run([*pip, "install", *options], check=True, stdout=sys.stderr)
        check = [*pip, "check"]
    else:
        uv.make_environment(folder, "--no-cache", "--requirement", requirements)
        check = [uv.program(), "pip", "check", "--python", python]
    subprocess.run(check, check=True, stdout=sys.stderr)
    # pip would compile on one processor. Code templates do not compile, and are not imported.
    compile_all = [python, "-m", "compileall", "-qq", "-j", "0", folder / "lib"]
    subprocess.run(compile_all, check=False, stdout=subprocess.DEVNULL)


def say(line: str) -> None:
    """Print a message; standard output is for the image map."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Create the requested environments and print the image map."""
    known = examples()
    parser = argparse.ArgumentParser(description="Make the environments of the examples.")
    parser.add_argument("framework", nargs="*", help=f"some of: {', '.join(known)}; all by default")
    parser.add_argument("--image-map", type=pathlib.Path, help="write the map here, do not print")
    arguments = parser.parse_args()
    if unknown := set(arguments.framework) - set(known):
        parser.error(f"no example for {', '.join(unknown)}; there are: {', '.join(known)}")
    try:
        made = {name: make(name) for name in arguments.framework or known if known[name]}
    except subprocess.CalledProcessError as error:
        sys.exit(f"cannot make the environment: {error}")
    images = {f"gangline/examples-{name}:*": {"env": str(env)} for name, env in made.items()}
    text = json.dumps(images, indent=2) + "\n"  # JSON is YAML, and needs no package here
    if arguments.image_map:
        arguments.image_map.parent.mkdir(parents=True, exist_ok=True)
        arguments.image_map.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
