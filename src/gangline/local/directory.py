"""The directory of an embedded cluster, its lock, and the record of the process that runs it.

    $GANGLINE_HOME (~/.gangline)
    ├── kubeconfig             of the default cluster: clients use it without configuration
    └── clusters/NAME/         state.db  pki/  kubeconfig  run.json  lock  log  kubelet/  volumes/

The kernel releases the lock when its process ends, however it ends. ``run.json`` holds pid, start
time and URL of that process, and counts only while the process lives.
"""

import fcntl
import os
import re
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from gangline.kube.config.embedded import RunRecord, embedded_home, read_run_record
from gangline.local.apiserver.storage.durable_files import make_directory, write_durably

DEFAULT_NAME = "default"
RESTORING = "restoring"
"""The folder of a backup's files while they are moved into place."""
MIN_FREE_BYTES = 64 << 20
"""The log of the API server alone takes up to 32 MiB."""

MIN_FREE_FILES = 1000
MIN_OPEN_FILES = 1024
"""Sockets of some clients, and pipes and logs of about a hundred containers."""

NAME_PATTERN = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


class ClusterError(Exception):
    """The cluster cannot be started, stopped or found; the message gives the remedy."""


class ClusterAlreadyRunning(ClusterError):
    """Another process runs this cluster; ``owner`` says which, such as ``by process 7 at URL``."""

    def __init__(self, name: str, owner: str) -> None:
        super().__init__(
            f"cluster {name} is already run {owner}. {cli_command('status', name)} shows it, "
            f"{cli_command('down', name)} stops it, and another --name starts one beside it"
        )


class ClusterNotRunning(ClusterError):
    """No process runs this cluster."""


def default_home() -> Path:
    """The directory of all clusters: ``$GANGLINE_HOME``, else ``~/.gangline``."""
    return embedded_home(os.environ)


@dataclass(frozen=True, slots=True)
class ClusterDirectory:
    root: Path
    name: str = DEFAULT_NAME

    @property
    def folder(self) -> Path:
        return self.root / "clusters" / self.name

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def default_kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def volumes(self) -> Path:
        return self.folder / "volumes"

    @property
    def _run_record_path(self) -> Path:
        return self.folder / "run.json"

    def prepare(self) -> None:
        """Create the directory, close it to other users, and check that a cluster can run in it.
        Raises ClusterError: it cannot be created or written, or a limit of the machine is too low.
        """
        if not NAME_PATTERN.fullmatch(self.name):
            raise ClusterError(
                f"{self.name!r} cannot name a cluster: use up to 40 small letters, digits and '-'"
            )
        try:
            make_directory(self.folder)
            # It contains Secrets, keys and logs. Containers with a user of their own reach their
            # volumes by mounts, which do not pass through this folder.
            self.folder.chmod(0o700)
            probe = self.folder / ".probe"
            probe.write_bytes(b"\0" * 4096)
            probe.unlink()
        except OSError as error:
            raise ClusterError(
                f"cannot write to {self.folder}: {error.strerror}; "
                "choose another folder with GANGLINE_HOME"
            ) from error
        check_limits(self.folder)

    def refuse_interrupted_restore(self) -> None:
        """Refuse to start a cluster that has a part of a backup's state. Raises ClusterError: a
        restore was interrupted.
        """
        if (self.folder / RESTORING).exists():
            raise ClusterError(
                f"a restore of cluster {self.name} was interrupted: repeat it with "
                f"{cli_command('restore FILE --force', self.name)}; the state before it is in "
                f"{self.folder}/replaced-TIME"
            )

    def write_run_record(self, note: RunRecord) -> None:
        fresh = self._run_record_path.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(note))
        fresh.rename(self._run_record_path)

    def write_settings(self, content: bytes) -> None:
        write_durably(self.folder / "settings.json", content)

    def read_run_record(self) -> RunRecord | None:
        """Return the record of the running process; None if the cluster does not run."""
        note = self.last_run_record()
        return note if note is not None and note.is_alive else None

    def last_run_record(self) -> RunRecord | None:
        """Return the record of the last process that ran the cluster, alive or not."""
        return read_run_record(self.folder)

    def publish_kubeconfig(self) -> Path:
        """Publish the kubeconfig of the default cluster; return the file to show to users."""
        if self.name != DEFAULT_NAME:
            return self.kubeconfig
        write_durably(self.default_kubeconfig, self.kubeconfig.read_bytes())
        return self.default_kubeconfig


def check_limits(folder: Path) -> None:
    """Raise ClusterError, with the remedy, if the machine lets a cluster start and then fail."""
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < MIN_FREE_BYTES:
        raise ClusterError(
            f"the disk of {folder} has {free >> 20} MiB free, a cluster needs "
            f"{MIN_FREE_BYTES >> 20}: free some space, or choose another folder with GANGLINE_HOME"
        )
    if disk.f_files and disk.f_favail < MIN_FREE_FILES:
        raise ClusterError(
            f"the disk of {folder} has inodes for {disk.f_favail} more files, a cluster needs "
            f"{MIN_FREE_FILES}: remove files, or choose another folder with GANGLINE_HOME"
        )
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < MIN_OPEN_FILES:
        raise ClusterError(
            f"at most {most} files may be open here, a cluster needs {MIN_OPEN_FILES}: raise the "
            "hard limit, as by 'nofile' in /etc/security/limits.conf, LimitNOFILE of a service, or "
            "--ulimit of a container"
        )


class ClusterLock:
    """The lock of a cluster, owned by the one process that runs it."""

    def __init__(self, cluster: ClusterDirectory) -> None:
        self._cluster = cluster
        self._descriptor = -1

    def __enter__(self) -> Self:
        path = self._cluster.folder / "lock"
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            note = self._cluster.read_run_record()
            owner = f"by process {note.pid} at {note.url}" if note else "by another process"
            raise ClusterAlreadyRunning(self._cluster.name, owner) from None
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def cli_command(verb: str, name: str) -> str:
    return f"'gangline {verb}'" if name == DEFAULT_NAME else f"'gangline {verb} --name {name}'"
