"""The release of PyTorch is read from the metadata of its installation."""

from pathlib import Path

import pytest

from gangline.elastic.launcher.settings import (
    installation_paths,
    speaks_agent_store,
    torch_release,
)


def installed(folder: Path, name: str) -> Path:
    (folder / name).mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("name", "release"),
    [
        ("torch-2.13.0+cpu.dist-info", (2, 13)),
        ("torch-1.13.1.egg-info", (1, 13)),
        ("torch-2.2.0a0+git1234.dist-info", (2, 2)),
        ("torch_geometric-2.1.0.dist-info", None),
        ("torch", None),
    ],
)
def test_release_of_an_installation(
    tmp_path: Path, name: str, release: tuple[int, int] | None
) -> None:
    assert torch_release([str(tmp_path / "absent"), str(installed(tmp_path, name))]) == release


def test_first_installation_of_the_search_path_counts(tmp_path: Path) -> None:
    old = installed(tmp_path / "old", "torch-2.0.1.dist-info")
    new = installed(tmp_path / "new", "torch-2.6.0.dist-info")
    assert torch_release([str(old), str(new)]) == (2, 0)
    assert torch_release([str(new), str(old)]) == (2, 6)


@pytest.mark.parametrize(("name", "speaks"), [("torch-2.1.2", False), ("torch-2.2.0", True)])
def test_interpreter_of_another_environment(tmp_path: Path, name: str, speaks: bool) -> None:
    packages = installed(tmp_path / "lib" / "python3.9" / "site-packages", f"{name}.dist-info")
    python = str(tmp_path / "bin" / "python")
    assert installation_paths(python) == [str(packages)]
    assert speaks_agent_store(python) is speaks
    assert speaks_agent_store("/usr/no/bin/python") is True, "unknown"
