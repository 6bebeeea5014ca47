"""What `bind_mounts` has to do for one container, and the command that starts it."""

import marshal
import os
import sys
from dataclasses import astuple, dataclass, field
from pathlib import Path

_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from gangline.local.kubelet.files.bind_mounts import main; main(sys.argv[1])"
)


@dataclass(frozen=True, slots=True)
class Cover:
    """An in-memory layer over a folder, with the machine's mounts below it."""

    target: str
    upper: str
    work: str
    options: str = ""
    inner: tuple[str, ...] = ()
    """Paths of this machine, which are mounted at the same paths again."""


@dataclass(frozen=True, slots=True)
class Bind:
    """One file or folder to mount."""

    target: str
    source: str
    """The volume, or the file or folder itself; a path that only the kubelet can change."""

    sub_path: str = ""
    """The part of the volume; empty for the volume itself."""

    read_only: bool = False


@dataclass(frozen=True, slots=True)
class MountOrders:
    """What to mount below ``root``; targets are absolute paths in the container, without links."""

    root: str
    covers: list[Cover] = field(default_factory=list)
    binds: list[Bind] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    """Folders to create after the mounts, such as the working folder."""

    def __bool__(self) -> bool:
        return bool(self.covers or self.binds or self.folders)

    def write(self, path: Path) -> None:
        """Write the file for the process, which has the same Python."""
        orders = {
            "root": self.root,
            "covers": [astuple(cover) for cover in self.covers],
            "binds": [astuple(bind) for bind in self.binds],
            "folders": [(folder,) for folder in self.folders],
        }
        path.write_bytes(marshal.dumps(orders))


def helper_command(orders: Path) -> list[str]:
    """The command that carries out the orders in a file.

    It runs without the packages of the environment (``-S``), which would double its start time.
    """
    packages = Path(__file__).parents[4]
    libraries = os.environ.get("LD_LIBRARY_PATH")
    prefix = ["/usr/bin/env", f"LD_LIBRARY_PATH={libraries}"] if libraries else []
    return [*prefix, sys.executable, "-I", "-S", "-c", _BOOT, str(packages), str(orders)]
