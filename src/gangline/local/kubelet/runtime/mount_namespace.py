"""The file system of a container: planned here, mounted by a small shell script.

It is built below a folder of the run, inside the container's own mount namespace, so that it
vanishes with the container. Without an image folder it consists of the machine's own files, with
private /proc, /dev, /run and /tmp, and a private /root where this user may not enter the machine's
(`private_folders`). With an image folder it is a writable layer over that folder.

Invariant: a mount point that the machine lacks is never created in the machine's folders. Its
parent folder is covered by an in-memory layer first.

All mounts of one stage use a single ``mount --all``, since each command costs a millisecond. They
name paths, so they serve only for places that no other process can replace. All other mounts
(parts of volumes, mount points inside volumes, folders of other users) are made by descriptors, in
a process of its own (`bind_mounts`), which takes about twenty milliseconds.

Only `MountNamespace.write_script` changes the machine: in the run's own folder, and mount points
inside volumes.
"""

import marshal
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from gangline.local.kubelet.files.beneath import make_beneath, open_beneath, opened_folder
from gangline.local.kubelet.runtime.interface import (
    EXIT_START_FAILED,
    REASON_START_ERROR,
    ContainerMount,
    ContainerPlan,
    ContainerStartError,
)
from gangline.local.kubelet.runtime.paths import (
    ROOT_HOME,
    is_within,
    mount_points,
    mounts_below,
    private_folders,
    resolve_inside,
)

READY_MARK = b"\x00ready\n"
"""The message of the setup script when the command is about to run."""

REPORT_FD = 3
"""The file descriptor of the setup script's report: `READY_MARK`, or an error."""

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "fuse", "net/tun")
_FSTAB_ESCAPES = {ord(character): f"\\{ord(character):03o}" for character in " \t\r\n\\#"}
_SPECIAL_TO_OVERLAYS = frozenset(",:\\\"'")
_GPU_DEVICES = ("nvidia*", "dri", "kfd", "infiniband")
_DEVICE_LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from gangline.local.kubelet.files.bind_mounts import main; main(sys.argv[1])"
)


class Cover(NamedTuple):
    """An in-memory layer over a folder, with the machine's mounts below it."""

    target: str
    upper: str
    work: str
    options: str = ""
    inner: tuple[str, ...] = ()
    """Paths of this machine, which are mounted at the same paths again."""


class Bind(NamedTuple):
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
        """Write the file for `bind_mounts`, which has the same Python."""
        orders = {
            "root": self.root,
            "covers": [tuple(cover) for cover in self.covers],
            "binds": [tuple(bind) for bind in self.binds],
            "folders": [(folder,) for folder in self.folders],
        }
        path.write_bytes(marshal.dumps(orders))


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
        # A line end in a mount path would begin an entry of its own, with any device as source.
        escaped = (text.translate(_FSTAB_ESCAPES) for text in fields)
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
        same_name: dict[str, list[str]] = {}
        others = []
        for to, link in self.links:
            if os.path.basename(to) == os.path.basename(link):
                same_name.setdefault(os.path.dirname(link), []).append(to)
            else:
                others.append(f"ln -sfn {shlex.join([to, link])}")
        together = [
            f"ln -sf {shlex.join([*targets, folder])}/" for folder, targets in same_name.items()
        ]
        return together + others


class MountNamespace:
    """The file system of one run of a container."""

    def __init__(self, plan: ContainerPlan, shared: tuple[Path, ...] = ()) -> None:
        self._plan = plan
        self._shared = shared
        self._base = str(plan.root).rstrip("/") if plan.root else ""
        self._private = () if plan.root else private_folders()
        self.root = container_root(plan)
        """The folder that becomes the container's ``/``."""
        self._trusted: dict[str, bool] = {}
        self._mounts = self._resolved_mounts()
        self.workdir = self._resolve(plan.workdir, self._mounts)

    def write_script(self) -> str:
        """Write the mount tables and return the setup script. Raises OSError: the state folder
        cannot be written (a full disk, no permission).
        """
        for name in ("root", "tmp", "home", "scratch"):
            (self._plan.state_dir / name).mkdir(parents=True, exist_ok=True)
        (self._plan.state_dir / "tmp").chmod(0o1777)
        mounts = self._mounts
        orders = MountOrders(self.root)
        covers, volumes = self._covers(mounts, orders), self._volumes(mounts, orders)
        lines = ["set -e", "umask 022", f"exec 4>&2 2>&{REPORT_FD}"]
        for number, stage in enumerate([self._bottom(), self._folders(), covers, volumes]):
            lines += stage.commands(self._plan.state_dir / f"mounts-{number}.tab")
        if orders:
            path = self._plan.state_dir / "mounts.orders"
            orders.write(path)
            lines.append(f"{shlex.join(helper_command(path))} </dev/null")
        return "\n".join([*lines, *self._last_commands()])

    def _last_commands(self) -> list[str]:
        name = shlex.quote(self._plan.hostname)
        rename = f"hostname {name} 2>/dev/null || echo {name} >/proc/sys/kernel/hostname || :"
        return [
            *([rename] if self._plan.hostname else []),
            *(
                f"echo {shlex.quote(value)} >/proc/sys/{shlex.quote(path)}"
                for path, value in self._plan.sysctls
            ),
            *(f"mount -n -o remount,bind,ro {shlex.quote(at)}" for at in self._protected()),
            f"printf '\\000ready\\n' >&{REPORT_FD}",
            f"exec 2>&4 {REPORT_FD}>&- 4>&-",
            'exec "$@"',
        ]

    def _protected(self) -> list[str]:
        """The mounts that ``readOnlyRootFilesystem`` closes: all but volumes, devices and the
        kernel's own file systems, as container engines do.
        """
        if not self._plan.read_only_root:
            return []
        if self._plan.root is not None:
            return [self.root]
        targets = [mount.target for mount in self._mounts]
        covers = {_folder_to_cover(target) for target in (*targets, self.workdir)} - {"/"}
        places = {*mount_points(), *covers, *self._private, "/run", "/tmp"} | {
            entry.path for entry in os.scandir("/") if entry.is_dir(follow_symlinks=False)
        }
        hidden = [*("/proc", "/dev", "/sys"), *targets]
        hidden += [str(folder) for folder in self._shared]
        shown = {at for at in places if not any(is_within(at, folder) for folder in hidden)}
        below_private = {at for at in shown if self._is_private(at) and at not in self._private}
        return [self.root, *(self.root + at for at in sorted(shown - below_private) if at != "/")]

    def _resolved_mounts(self) -> list[ContainerMount]:
        """The volumes, outer ones first, at targets without symbolic links."""
        resolved: list[ContainerMount] = []
        for mount in sorted(self._plan.mounts, key=lambda mount: PurePosixPath(mount.target).parts):
            resolved.append(replace(mount, target=self._resolve(mount.target, resolved)))
        return sorted(resolved, key=lambda mount: PurePosixPath(mount.target).parts)

    def _resolve(self, target: str, mounts: Sequence[ContainerMount]) -> str:
        places = {mount.target: str(mount.source) for mount in mounts}
        return resolve_inside(self._base, target, stop_at=self._private, mounts=places)

    def _is_private(self, path: str) -> bool:
        return any(is_within(path, folder) for folder in self._private)

    def _is_fixed(self, path: str) -> bool:
        """True if only root and this user can replace a folder that ``path`` lies in."""
        shared = any(is_within(path, str(folder)) for folder in self._shared)
        if self._is_private(path) and not shared:
            return True
        parents = [str(parent) for parent in PurePosixPath(path).parents]
        return all(self._is_own(self._base + parent) for parent in parents)

    def _is_own(self, folder: str) -> bool:
        if folder not in self._trusted:
            try:
                status = os.stat(folder)
            except OSError:
                # It is created in a layer of the container's own, over the folder enclosing it.
                return True
            owned = status.st_uid in (0, os.geteuid())
            self._trusted[folder] = owned and not status.st_mode & 0o022
        return self._trusted[folder]

    def _bottom(self) -> _Stage:
        stage = _Stage()
        image = self._plan.root
        if image is None:
            stage.mount("gangline", self.root, "tmpfs", "mode=755")
            scratch = self._plan.state_dir / "scratch"
            stage.mount("gangline-scratch", str(scratch), "tmpfs", "mode=755")
        else:
            layers = {name: self._plan.state_dir / name for name in ("upper", "work")}
            for layer in layers.values():
                layer.mkdir(exist_ok=True)
            stage.mount("gangline", self.root, "overlay", _overlay(image, **layers))
        return stage

    def _folders(self) -> _Stage:
        """The machine's folders (or an image's), and the private ones."""
        stage = _Stage(folders=[self.root + folder for folder in private_folders()])
        if self._plan.root is None:
            for entry in sorted(os.scandir("/"), key=lambda entry: entry.name):
                if entry.path in self._private:
                    continue
                if entry.is_symlink():
                    stage.links.append((os.readlink(entry.path), self.root + entry.path))
                elif entry.is_dir():
                    stage.bind(Path(entry.path), self.root + entry.path)
            stage.bind(self._plan.state_dir / "tmp", f"{self.root}/tmp")
            if ROOT_HOME in self._private:
                stage.bind(self._plan.state_dir / "home", self.root + ROOT_HOME)
            stage.mount("gangline-run", f"{self.root}/run", "tmpfs", "mode=755")
        else:
            stage.bind(Path("/sys"), f"{self.root}/sys")
        stage.mount("gangline-dev", f"{self.root}/dev", "tmpfs", "mode=755")
        stage.mount("gangline-proc", f"{self.root}/proc", "proc", "defaults")
        return stage

    def _covers(self, mounts: list[ContainerMount], orders: MountOrders) -> _Stage:
        """In-memory layers over the machine's folders that lack a mount point or the working
        folder.
        """
        stage = _Stage()
        if self._plan.root is not None:
            return stage
        targets = [mount.target for mount in mounts] + [self.workdir]
        holders = {
            _folder_to_cover(target)
            for target in targets
            if not self._is_private(target) and not _enclosing_mount(target, mounts)
        } - {"/"}
        outermost = [
            folder
            for folder in sorted(holders)
            if not any(is_within(folder, other) for other in holders - {folder})
        ]
        scratch = self._plan.state_dir / "scratch"
        for number, folder in enumerate(outermost):
            layer = scratch / str(number)
            # By descriptor too if the options of the mount command cannot contain the name.
            if not self._is_fixed(folder) or not _SPECIAL_TO_OVERLAYS.isdisjoint(folder):
                upper, work = str(layer / "upper"), str(layer / "work")
                cover = Cover(folder, upper, work, _overlay_extras(), tuple(mounts_below(folder)))
                orders.covers.append(cover)
                continue
            stage.folders += [str(layer / "upper"), str(layer / "work")]
            layers = _overlay(Path(folder), layer / "upper", layer / "work")
            stage.mount("gangline", self.root + folder, "overlay", layers)
            for inner in mounts_below(folder):
                stage.mount(inner, self.root + inner, "none", "rbind")
        return stage

    def _volumes(self, mounts: list[ContainerMount], orders: MountOrders) -> _Stage:
        stage = _Stage()
        dev = f"{self.root}/dev"
        for device in self._device_files():
            stage.bind(device, self.root + str(device))
        stage.folders += [f"{dev}/pts", f"{dev}/shm"]
        stage.mount("devpts", f"{dev}/pts", "devpts", "newinstance,ptmxmode=0666,mode=620")
        stage.mount("gangline-shm", f"{dev}/shm", "tmpfs", "mode=1777")
        stage.links += [(to, f"{dev}/{name}") for name, to in _DEVICE_LINKS.items()]
        if self._plan.root is None:
            for folder in self._shared:
                if folder.is_dir() and self._is_private(str(folder)):
                    stage.bind(folder, self.root + str(folder))
        for mount in mounts:
            outer = _enclosing_mount(mount.target, mounts)
            if outer:
                _make_inside(outer, mount.target, mount.source.is_dir())
            if outer or mount.volume or not self._is_fixed(mount.target):
                source = str(mount.volume or mount.source)
                bind = Bind(mount.target, source, mount.sub_path, mount.read_only)
                orders.binds.append(bind)
            else:
                stage.bind(
                    mount.source,
                    self.root + mount.target,
                    "rbind,ro" if mount.read_only else "rbind",
                )
        if outer := _enclosing_mount(self.workdir + "/", mounts):
            _make_inside(outer, self.workdir, is_folder=True)
        elif self._is_fixed(self.workdir):
            stage.folders.append(self.root + self.workdir)
        else:
            orders.folders.append(self.workdir)
        return stage

    def _device_files(self) -> list[Path]:
        devices = [Path("/dev", name) for name in _DEVICES]
        if self._plan.gpu_devices:
            devices += [path for pattern in _GPU_DEVICES for path in Path("/dev").glob(pattern)]
        return sorted({path for path in devices if path.exists()})


def container_root(plan: ContainerPlan) -> str:
    return str(plan.state_dir / "root")


def _overlay(lower: Path, upper: Path, work: Path) -> str:
    # Overlays separate folders by colons, and names of image folders may contain them.
    lower_name = str(lower).replace(":", "\\:")
    return f"lowerdir={lower_name},upperdir={upper},workdir={work}{_overlay_extras()}"


def _overlay_extras() -> str:
    return "" if os.geteuid() == 0 else ",userxattr"


def _folder_to_cover(target: str) -> str:
    """The folder of the machine to cover so that ``target`` can be created; ``/`` if none."""
    if os.path.exists(target):
        return "/"
    folder = os.path.dirname(target)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


def _enclosing_mount(target: str, mounts: list[ContainerMount]) -> ContainerMount | None:
    """The innermost other mount that ``target`` lies in."""
    enclosing = [mount for mount in mounts if is_within(target, mount.target)]
    enclosing = [mount for mount in enclosing if mount.target != target]
    return enclosing[-1] if enclosing else None


def _make_inside(outer: ContainerMount, target: str, is_folder: bool) -> None:
    """Create a mount point or working folder inside a volume, as container engines do."""
    path = os.path.relpath(target, outer.target)
    try:
        with opened_folder(outer.volume or outer.source) as volume:
            part = open_beneath(volume, outer.sub_path)
            try:
                made = make_beneath(part, path, 0o755, is_folder=is_folder, follow_links=False)
                os.close(made)
            finally:
                os.close(part)
    except OSError as error:
        message = f"cannot create {target} in the volume at {outer.target}: {error.strerror}"
        raise ContainerStartError(message, REASON_START_ERROR, EXIT_START_FAILED) from error


def helper_command(orders: Path) -> list[str]:
    """The command that carries out the orders in a file.

    It runs without the packages of the environment (``-S``), which would double its start time.
    """
    packages = Path(__file__).parents[4]
    libraries = os.environ.get("LD_LIBRARY_PATH")
    prefix = ["/usr/bin/env", f"LD_LIBRARY_PATH={libraries}"] if libraries else []
    return [*prefix, sys.executable, "-I", "-S", "-c", _BOOT, str(packages), str(orders)]
