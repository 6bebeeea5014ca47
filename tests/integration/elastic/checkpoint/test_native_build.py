"""The package's wheel with a C compiler, and without one.

Takes 25 s: wheels are built with and without a compiler.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
LIBRARY = "gangline/elastic/checkpoint/format/copy_summed.so"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources of a wheel, so that builds do not affect the working tree."""
    copy = tmp_path_factory.mktemp("tree")
    for folder in ("src", "examples", "tools", "deploy"):
        skip = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / folder, copy / folder, ignore=skip)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, copy)
    return copy


def wheel_of(tree: Path, into: Path, compiler: str) -> Path:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", tree, "--wheel-dir", into],
        env={**os.environ, "CC": compiler},
        check=True,
        timeout=100,
    )
    (wheel,) = into.glob("*.whl")
    return wheel


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_with_a_compiler_the_wheel_is_for_this_platform_and_has_the_library(
    tree: Path, tmp_path: Path
) -> None:
    wheel = wheel_of(tree, tmp_path, "cc")
    assert wheel.name.startswith("gangline-")
    assert "-py3-none-manylinux_2_" in wheel.name  # package indexes refuse plain linux
    names = zipfile.ZipFile(wheel).namelist()
    assert LIBRARY in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_one_the_wheel_is_for_all_platforms(
    tree: Path, tmp_path: Path, compiler: str
) -> None:
    (tree / "src" / LIBRARY).touch()  # left by an earlier build
    wheel = wheel_of(tree, tmp_path, compiler)
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert LIBRARY not in names
    assert "gangline/elastic/checkpoint/format/checksum.py" in names
