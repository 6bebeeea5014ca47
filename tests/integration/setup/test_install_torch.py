"""Which build of PyTorch is installed, from package indexes on this machine."""

import functools
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[3] / "tools/install_torch.py"
VERSION = "9.9.9"
GPUS = Path("/proc/driver/nvidia/gpus")

pytestmark = pytest.mark.skipif(
    any(GPUS.glob("*")), reason="this machine has a GPU and takes the build for CUDA"
)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def add_wheel(index: Path, name: str, version: str, needs: str = "") -> None:
    """Add a package without modules to a package index (PEP 503)."""
    page = index / name.replace("_", "-")
    page.mkdir(parents=True, exist_ok=True)
    file = page / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    requires = f"Requires-Dist: {needs}\n" if needs else ""
    with zipfile.ZipFile(file, "w") as wheel:
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}"
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    links = "".join(f'<a href="{each.name}">{each.name}</a>' for each in page.glob("*.whl"))
    (page / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")


@pytest.fixture
def indexes(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a server, and its folder with the indexes ``registry`` and ``cpu``."""
    root = tmp_path / "indexes"
    add_wheel(root / "registry", "torch", VERSION, needs="nvidia-cublas==1.0")
    add_wheel(root / "registry", "nvidia_cublas", "1.0")
    add_wheel(root / "cpu", "torch", f"{VERSION}+cpu")
    handler = functools.partial(Quiet, directory=str(root))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", root
        server.shutdown()


def install(address: str, target: Path, cpu_index: str, **variables: str) -> tuple[str, list[str]]:
    """Install; return what was printed first, and what is installed."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    environment |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": f"{address}/registry"}
    environment |= {"PIP_TARGET": str(target), **variables}
    done = subprocess.run(
        [sys.executable, TOOL, f"torch=={VERSION}", "--cpu-index", cpu_index],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    return done.stdout.splitlines()[0], sorted(each.name for each in target.glob("*.dist-info"))


def test_cpu_build_of_an_index_that_answers(indexes: tuple[str, Path], tmp_path: Path) -> None:
    address, _ = indexes
    printed, installed = install(address, tmp_path / "site", f"{address}/cpu")
    assert installed == [f"torch-{VERSION}+cpu.dist-info"]
    assert printed.startswith(f"PyTorch {VERSION}+cpu (CPU build; 1 package, 0 MB) ... 1 package, ")


def test_build_of_the_registry_where_no_other_can_be_had(
    indexes: tuple[str, Path], tmp_path: Path
) -> None:
    address, _ = indexes
    printed, installed = install(address, tmp_path / "site", f"{address}/closed")
    assert installed == ["nvidia_cublas-1.0.dist-info", f"torch-{VERSION}.dist-info"]
    assert "(build for CUDA, 5 GB on disk; 2 packages, " in printed


def test_cpu_build_on_disk(indexes: tuple[str, Path], tmp_path: Path) -> None:
    address, root = indexes
    folder = str(root / "cpu/torch")
    site = tmp_path / "site"
    _, installed = install(address, site, f"{address}/closed", PIP_FIND_LINKS=folder)
    assert installed == [f"torch-{VERSION}+cpu.dist-info"]
