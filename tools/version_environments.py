"""Run unit tests with other versions of packages and of Python than the pinned ones.

usage: version_environments.py [--python PYTHON] [--subset] RESOLUTION [-- PYTEST ARGUMENT...]

RESOLUTION is ``lowest`` (of what pyproject.toml names: the bounds that it promises) or ``newest``.
PYTHON is a version such as 3.13 or the path of an interpreter; default: the running one. The
packages are installed by uv into an environment of their own; it is created again each time: uv
links the files from its cache. ``--subset`` runs the tests of code that depends on the packages
most, in half a minute of processor time.
"""

import argparse
import os
import pathlib
import subprocess
import sys

import framework_environments as frameworks

SOURCE = pathlib.Path(__file__).parents[1]
RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}
EXTRAS = "dev,brain,brain-postgres,brain-mysql"
TESTS_FAILED = 1  # pytest's exit status
SUBSET = (
    "tests/unit/api/meta",
    "tests/unit/apiserver/auth",
    "tests/unit/cli/test_command_line.py",
    "tests/unit/cli/test_usual_mistakes.py",
    "tests/unit/kube",
    "tests/unit/operator/engine",
)


def make(program: pathlib.Path, python: str, resolution: str) -> pathlib.Path:
    """Create the environment, and return its interpreter.

    Raises:
        CalledProcessError: there is no such Python, or its packages contradict each other.
    """
    folder = SOURCE / ".venvs" / f"{resolution}-{pathlib.PurePath(python).name}"
    interpreter = folder / "bin/python"
    create = [program, "venv", "--quiet", "--clear", "--no-python-downloads", "--python", python]
    subprocess.run([*create, folder], check=True)
    install = [program, "pip", "install", "--quiet", "--python", interpreter]
    chosen = ["--resolution", RESOLUTIONS[resolution], "--editable", f"{SOURCE}[{EXTRAS}]"]
    subprocess.run([*install, *chosen], check=True)
    subprocess.run([program, "pip", "list", "--python", interpreter], check=True)
    return interpreter


def main() -> int:
    """Make the environment and run the tests in it; return pytest's exit status."""
    parser = argparse.ArgumentParser(description="Run unit tests with other versions.")
    parser.add_argument("resolution", choices=RESOLUTIONS)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--subset", action="store_true")
    parser.add_argument("further", nargs="*", metavar="ARGUMENT", help="arguments of pytest")
    chosen = parser.parse_args()
    try:
        interpreter = make(frameworks.uv(), chosen.python, chosen.resolution)
    except subprocess.CalledProcessError as error:
        sys.exit(f"cannot make the environment: {error}")
    tests = chosen.further or (SUBSET if chosen.subset else ["tests/unit"])
    # Warnings of other versions about what they will change are not ours.
    cache = f".pytest_cache/{chosen.resolution}"
    pytest = [interpreter, "-m", "pytest", "-q", "-o", f"cache_dir={cache}", "-W", "default"]
    pytest += ["--timeout", "600"]  # CI runs them behind everything else
    # The pinned versions' own options do not apply.
    environment = {name: text for name, text in os.environ.items() if name != "PYTEST_ADDOPTS"}

    def run(*command: str) -> int:
        return subprocess.run(command, cwd=SOURCE, env=environment, check=False).returncode

    status = run(*pytest, *tests)
    # What few tests fail once, beside other work, runs once more alone; that outcome counts.
    few = (sys.executable, "tools/last_failed.py", cache, "tests/unit")
    if status == TESTS_FAILED and run(*few) == 0:
        status = run(*pytest, "--last-failed", "--last-failed-no-failures", "none", *tests)
    return status


if __name__ == "__main__":
    sys.exit(main())
