"""The file system of a container: planned here, mounted by a small shell script.

It is built below a folder of the run, inside the container's own mount namespace, so that it
vanishes with the container. Without an image folder it consists of the machine's own files, with
private /proc, /dev, /run and /tmp. With an image folder it is a writable layer over that folder.

Invariant: a mount point that the machine lacks is never created in the machine's folders. Its
parent folder is covered by an in-memory layer first.

All mounts of one stage use a single ``mount --all``, since each command costs a millisecond. Only
`MountNamespace.write` changes the machine, and only in the run's own folder.
"""

import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from gangline.local.kubelet.runtime.interface import ContainerMount, ContainerPlan
from gangline.local.kubelet.runtime.paths import is_within, mounts_below, resolve_inside

READY_MARK = b"\x00ready\n"
"""The message of the setup script when the command is about to run."""

REPORT_FD = 3
"""The file descriptor of the setup script's report: `READY_MARK`, or an error."""

_PRIVATE = ("/proc", "/dev", "/run", "/tmp")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "fuse", "net/tun")
_GPU_DEVICES = ("nvidia*", "dri", "kfd", "infiniband")
_DEVICE_LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}


@dataclass(slots=True)
class _Stage:
    """One step of the setup: folders and files to create, then mounts, then links."""

    folders: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    table: list[str] = field(default_factory=list)
    links: list[tuple[str, str]] = field(default_factory=list)

    def mount(self, source: object, target: str, kind: str, options: str) -> None:
        """Add a line to the mount table, escaped for ``fstab``."""
        fields = (str(source), target, kind, options)
        escaped = (text.replace("\\", "\\134").replace(" ", "\\040") for text in fields)
        self.table.append(" ".join(escaped) + " 0 0\n")

    def bind(self, source: Path, target: str, options: str = "rbind") -> None:
        """Bind a file or folder to ``target``, which is created if it is missing."""
        if source.is_dir():
            self.folders.append(target)
        else:
            self.folders.append(os.path.dirname(target))
            self.files.append(target)
        self.mount(source, target, "none", options)

    def commands(self, table: Path) -> list[str]:
        """The shell commands of this stage; writes its mount table."""
        lines = []
        if self.folders:
            lines.append(f"mkdir -p {shlex.join(dict.fromkeys(self.folders))}")
        lines += [f"[ -e {name} ] || : >{name}" for name in map(shlex.quote, self.files)]
        if self.table:
            table.write_text("".join(self.table))
            lines.append(f"mount -n --all --fstab {shlex.quote(str(table))}")
        return lines + self._link_commands()

    def _link_commands(self) -> list[str]:
        """Links with the same name as their target share one command for each folder."""
        alike: dict[str, list[str]] = {}
        others = []
        for to, link in self.links:
            if os.path.basename(to) == os.path.basename(link):
                alike.setdefault(os.path.dirname(link), []).append(to)
            else:
                others.append(f"ln -sfn {shlex.join([to, link])}")
        together = [
            f"ln -sf {shlex.join([*targets, folder])}/" for folder, targets in alike.items()
        ]
        return together + others


class MountNamespace:
    """The file system of one run of a container."""

    def __init__(self, plan: ContainerPlan, shared: tuple[Path, ...] = ()) -> None:
        self._plan = plan
        self._shared = shared
        self._base = str(plan.root).rstrip("/") if plan.root else ""
        self._root = container_root(plan)
        self._write_protection = ",ro" if plan.read_only_root else ""
        self.workdir = self._resolve(plan.workdir)

    @property
    def root(self) -> str:
        """The folder that becomes the container's ``/``."""
        return self._root

    def write_script(self) -> str:
        """Write the mount tables and return the setup script.

        Raises:
            OSError: the state folder cannot be written (a full disk, no permission).
        """
        for name in ("root", "tmp", "scratch"):
            (self._plan.state_dir / name).mkdir(parents=True, exist_ok=True)
        (self._plan.state_dir / "tmp").chmod(0o1777)
        mounts = self._mounts()
        stages = [self._bottom(), self._folders(), self._covers(mounts), self._volumes(mounts)]
        lines = ["set -e", "umask 022", f"exec 4>&2 2>&{REPORT_FD}"]
        for number, stage in enumerate(stages):
            lines += stage.commands(self._plan.state_dir / f"mounts-{number}.tab")
        return "\n".join([*lines, *self._last_commands()])

    def _last_commands(self) -> list[str]:
        name = shlex.quote(self._plan.hostname)
        rename = f"hostname {name} 2>/dev/null || echo {name} >/proc/sys/kernel/hostname || :"
        return [
            *([rename] if self._plan.hostname else []),
            f"printf '\\000ready\\n' >&{REPORT_FD}",
            f"exec 2>&4 {REPORT_FD}>&- 4>&-",
            'exec "$@"',
        ]

    def _mounts(self) -> list[ContainerMount]:
        """The volumes, outer ones first, at targets without symbolic links."""
        resolved = [
            ContainerMount(mount.source, self._resolve(mount.target), mount.read_only)
            for mount in self._plan.mounts
        ]
        return sorted(resolved, key=lambda mount: PurePosixPath(mount.target).parts)

    def _resolve(self, target: str) -> str:
        private = () if self._base else _PRIVATE
        return resolve_inside(self._base, target, stop_at=private)

    def _bottom(self) -> _Stage:
        stage = _Stage()
        image = self._plan.root
        if image is None:
            stage.mount("gangline", self._root, "tmpfs", "mode=755")
            scratch = self._plan.state_dir / "scratch"
            stage.mount("gangline-scratch", str(scratch), "tmpfs", "mode=755")
        else:
            layers = {name: self._plan.state_dir / name for name in ("upper", "work")}
            for layer in layers.values():
                layer.mkdir(exist_ok=True)
            stage.mount("gangline", self._root, "overlay", _overlay(image, **layers))
        return stage

    def _folders(self) -> _Stage:
        """The machine's folders (or an image's), and the private ones."""
        stage = _Stage(folders=[self._root + folder for folder in _PRIVATE])
        if self._plan.root is None:
            for entry in sorted(os.scandir("/"), key=lambda entry: entry.name):
                if entry.path in _PRIVATE:
                    continue
                if entry.is_symlink():
                    stage.links.append((os.readlink(entry.path), self._root + entry.path))
                elif entry.is_dir():
                    options = "rbind" + self._write_protection
                    stage.bind(Path(entry.path), self._root + entry.path, options)
            stage.bind(self._plan.state_dir / "tmp", f"{self._root}/tmp")
            stage.mount("gangline-run", f"{self._root}/run", "tmpfs", "mode=755")
        else:
            stage.bind(Path("/sys"), f"{self._root}/sys")
        stage.mount("gangline-dev", f"{self._root}/dev", "tmpfs", "mode=755")
        stage.mount("gangline-proc", f"{self._root}/proc", "proc", "defaults")
        return stage

    def _covers(self, mounts: list[ContainerMount]) -> _Stage:
        """In-memory layers over the machine's folders that lack a mount point or the working
        folder.
        """
        stage = _Stage()
        if self._plan.root is not None:
            return stage
        targets = [mount.target for mount in mounts] + [self.workdir]
        holders = {
            _folder_to_cover(target) for target in targets if not _enclosing_mount(target, mounts)
        } - {"/"}
        outermost = [
            folder
            for folder in sorted(holders)
            if not any(is_within(folder, other) for other in holders - {folder})
        ]
        scratch = self._plan.state_dir / "scratch"
        for number, folder in enumerate(outermost):
            place = scratch / str(number)
            stage.folders += [str(place / "upper"), str(place / "work")]
            layers = _overlay(Path(folder), place / "upper", place / "work")
            stage.mount("gangline", self._root + folder, "overlay", layers)
            for inner in mounts_below(folder):
                stage.mount(inner, self._root + inner, "none", "rbind")
        return stage

    def _volumes(self, mounts: list[ContainerMount]) -> _Stage:
        stage = _Stage()
        dev = f"{self._root}/dev"
        for device in self._device_files():
            stage.bind(device, self._root + str(device))
        stage.folders += [f"{dev}/pts", f"{dev}/shm"]
        stage.mount("devpts", f"{dev}/pts", "devpts", "newinstance,ptmxmode=0666,mode=620")
        stage.mount("gangline-shm", f"{dev}/shm", "tmpfs", "mode=1777")
        stage.links += [(to, f"{dev}/{name}") for name, to in _DEVICE_LINKS.items()]
        if self._plan.root is None:
            for folder in self._shared:
                if folder.is_dir() and _is_private(str(folder)):
                    stage.bind(folder, self._root + str(folder))
        for mount in mounts:
            if outer := _enclosing_mount(mount.target, mounts):
                _make_inside(outer, mount.target, mount.source.is_dir())
            stage.bind(mount.source, self._root + mount.target, _bind_options(mount))
        if outer := _enclosing_mount(self.workdir + "/", mounts):
            _make_inside(outer, self.workdir, is_folder=True)
        else:
            stage.folders.append(self._root + self.workdir)
        return stage

    def _device_files(self) -> list[Path]:
        found = [Path("/dev", name) for name in _DEVICES]
        if self._plan.gpu_devices:
            found += [path for pattern in _GPU_DEVICES for path in Path("/dev").glob(pattern)]
        return sorted({path for path in found if path.exists()})


def container_root(plan: ContainerPlan) -> str:
    """The folder that becomes a container's root, inside its mount namespace."""
    return str(plan.state_dir / "root")


def _bind_options(mount: ContainerMount) -> str:
    return "rbind,ro" if mount.read_only else "rbind"


def _overlay(lower: Path, upper: Path, work: Path) -> str:
    extras = "" if os.geteuid() == 0 else ",userxattr"
    # Overlays separate folders by colons, and names of image folders may contain them.
    lower_name = str(lower).replace(":", "\\:")
    return f"lowerdir={lower_name},upperdir={upper},workdir={work}{extras}"


def _is_private(path: str) -> bool:
    return any(is_within(path, folder) for folder in _PRIVATE)


def _folder_to_cover(target: str) -> str:
    """The folder of the machine to cover so that ``target`` can be created; ``/`` if none."""
    if _is_private(target) or os.path.exists(target):
        return "/"
    folder = os.path.dirname(target)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


def _enclosing_mount(target: str, mounts: list[ContainerMount]) -> ContainerMount | None:
    """The innermost other mount that ``target`` lies in."""
    around = [mount for mount in mounts if is_within(target, mount.target)]
    around = [mount for mount in around if mount.target != target]
    return around[-1] if around else None


def _make_inside(outer: ContainerMount, target: str, is_folder: bool) -> None:
    """Create a mount point or working folder inside a volume, as container engines do."""
    place = outer.source / os.path.relpath(target, outer.target)
    if place.exists() or not outer.source.is_dir():
        return
    if is_folder:
        place.mkdir(parents=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
