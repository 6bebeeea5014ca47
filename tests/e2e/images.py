"""Container images made of programs of this machine, for a cluster that cannot pull any."""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

_LIBRARY = re.compile(r"(/\S+) \(0x")
_MERGED = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64"}
_APPLETS = ("sh", "rm", "mkdir", "cat", "env", "touch", "ls")
_LEFT_OUT = {"__pycache__", "site-packages", "dist-packages", "test", "idlelib", "ensurepip"}
"""Parts of the standard library that programs here do not need."""
_Filter = Callable[[tarfile.TarInfo], tarfile.TarInfo | None]
GIT_PARTS = ("git-remote-http", "git-remote-https")


def git_image(archive: Path) -> str:
    """Write an image of git and a shell; return its name."""
    parts = Path(subprocess.check_output(["git", "--exec-path"], text=True).strip())
    git = Path(shutil.which("git") or "/usr/bin/git")
    _write(archive, "git:1", [git, *(parts / name for name in GIT_PARTS)], "/usr/bin")
    return "git:1"


def python_image(archive: Path, name: str, folder: Path) -> str:
    """Write an image of Python and a folder that has programs in ``bin``; return its name.

    Args:
        archive: where to.
        name: the image's.
        folder: a virtual environment, or a folder of programs that need the standard library only;
            it is found where it lies on this machine.
    """
    interpreter = Path(os.path.realpath(sys.executable))
    library = Path(os.path.realpath(os.__file__)).parent
    extensions = [*library.glob("lib-dynload/*.so"), *folder.rglob("*.so")]
    folders = {folder: _needed, library: _of_the_library}
    # The interpreter under every name that the links of an environment and first lines use.
    programs = Path(sys.base_prefix, "bin")
    names = {interpreter, programs / interpreter.name, programs / "python3"}
    path = f"{folder}/bin:{sys.base_prefix}/bin:/usr/bin"
    _write(archive, name, sorted(names), path, folders, extensions)
    return name


def _write(
    archive: Path,
    name: str,
    programs: Iterable[Path],
    path: str,
    folders: Mapping[Path, _Filter] = MappingProxyType({}),
    extensions: Iterable[Path] = (),
) -> None:
    """Write a docker archive: one layer with programs, their libraries, folders, and a shell."""
    layer = archive.with_suffix(".layer")
    with tarfile.open(layer, "w", dereference=False) as tar:
        for link, target in _MERGED.items():
            _link(tar, link, target)
        tar.add("/bin/busybox", "usr/bin/busybox")
        for applet in _APPLETS:
            _link(tar, f"usr/bin/{applet}", "busybox")
        # Without it, only DNS is used, which does not resolve localhost.
        _content(tar, "etc/nsswitch.conf", b"hosts: files dns\n")
        wanted = list(programs)
        for file in sorted({*wanted, *_libraries([*wanted, *extensions])}):
            _file(tar, file)
        for folder, wanted_of in folders.items():
            tar.add(folder, str(folder).lstrip("/"), filter=wanted_of)
    digest = _sha256(layer)
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": [f"PATH={path}"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    described = f"{hashlib.sha256(config).hexdigest()}.json"
    tags = [f"docker.io/library/{name}"]
    manifest = [{"Config": described, "RepoTags": tags, "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        tar.add(layer, "layer.tar")
        _content(tar, described, config)
        _content(tar, "manifest.json", json.dumps(manifest).encode())
    layer.unlink()


def _libraries(files: list[Path]) -> set[Path]:
    """The shared libraries of programs and libraries."""
    said = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True, check=False)
    return {Path(found) for found in _LIBRARY.findall(said.stdout)}


def _file(tar: tarfile.TarFile, file: Path) -> None:
    """Add what a path leads to, where the path is once the folders' links are followed."""
    place = Path(os.path.realpath(file.parent), file.name)
    tar.add(os.path.realpath(file), str(place).lstrip("/"))


def _needed(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if entry.name.endswith("__pycache__") else entry


def _of_the_library(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if Path(entry.name).name in _LEFT_OUT else entry


def _link(tar: tarfile.TarFile, name: str, target: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    tar.addfile(entry)


def _content(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
