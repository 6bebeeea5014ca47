"""Where an embedded cluster keeps its things, and the note of the process that runs it.

    $GANGLINE_HOME (~/.gangline)
    ├── kubeconfig             of the default cluster: what a client finds without being told
    └── clusters/NAME/         state.db  pki/  kubeconfig  run.json  lock  log  kubelet/  volumes/

The lock is held for as long as a process runs the cluster and falls with it, however it dies;
``run.json`` says who that is, and is only believed while its process lives.
"""

import fcntl
import os
import re
import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Self

import msgspec

DEFAULT_NAME = "default"
NAME_PATTERN = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


class ClusterError(Exception):
    """The cluster cannot be started, stopped or found; the message says what to do."""


class AlreadyRunning(ClusterError):
    """Another process runs this cluster."""


class NotRunning(ClusterError):
    """No process runs this cluster."""


def default_home() -> Path:
    """The folder of all clusters: ``$GANGLINE_HOME``, else ``~/.gangline``."""
    return Path(os.environ.get("GANGLINE_HOME") or Path.home() / ".gangline")


class RunNote(msgspec.Struct, frozen=True):
    """Who runs a cluster, and where it answers."""

    pid: int
    process_start: int
    """When the process began, in the kernel's ticks: tells it from a later one of its number."""

    url: str
    since: datetime


@dataclass(frozen=True, slots=True)
class ClusterHome:
    """The folder of one cluster."""

    root: Path
    name: str = DEFAULT_NAME

    @property
    def folder(self) -> Path:
        """Everything of this cluster."""
        return self.root / "clusters" / self.name

    @property
    def kubeconfig(self) -> Path:
        """How to reach this cluster."""
        return self.folder / "kubeconfig"

    @property
    def default_kubeconfig(self) -> Path:
        """Where clients look that are not told anything."""
        return self.root / "kubeconfig"

    @property
    def log(self) -> Path:
        """What a cluster in the background prints."""
        return self.folder / "log"

    @property
    def volumes(self) -> Path:
        """The folders of persistent volumes."""
        return self.folder / "volumes"

    @property
    def _run_note(self) -> Path:
        return self.folder / "run.json"

    def prepare(self) -> None:
        """Make the folder.

        Raises:
            ClusterError: it cannot be made or written.
        """
        if not NAME_PATTERN.fullmatch(self.name):
            raise ClusterError(
                f"{self.name!r} cannot name a cluster: use up to 40 small letters, digits and '-'"
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o711)
            probe = self.folder / ".probe"
            probe.write_bytes(b"\0" * 4096)
            probe.unlink()
        except OSError as error:
            raise ClusterError(
                f"cannot write to {self.folder}: {error.strerror}; "
                "choose another folder with GANGLINE_HOME"
            ) from error

    def write_note(self, note: RunNote) -> None:
        """Say who runs the cluster."""
        fresh = self._run_note.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(note))
        fresh.rename(self._run_note)

    def read_note(self) -> RunNote | None:
        """Return who runs the cluster; None when nobody does (any more)."""
        note = self.last_note()
        alive = note is not None and process_start(note.pid) == note.process_start
        return note if alive else None

    def last_note(self) -> RunNote | None:
        """Return who ran the cluster last, alive or not."""
        try:
            return msgspec.json.decode(self._run_note.read_bytes(), type=RunNote)
        except (OSError, msgspec.DecodeError):
            return None

    def publish_kubeconfig(self) -> Path:
        """Let clients find the default cluster; return the file to name to people."""
        if self.name != DEFAULT_NAME:
            return self.kubeconfig
        shutil.copyfile(self.kubeconfig, self.default_kubeconfig)
        self.default_kubeconfig.chmod(0o600)
        return self.default_kubeconfig


class Lock:
    """Held by the one process that runs a cluster."""

    def __init__(self, home: ClusterHome) -> None:
        self._home = home
        self._descriptor = -1

    def __enter__(self) -> Self:
        path = self._home.folder / "lock"
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            note = self._home.read_note()
            who = f"by process {note.pid} at {note.url}" if note else "by another process"
            raise AlreadyRunning(
                f"cluster {self._home.name} is run {who} already; stop it with "
                f"{command_for('down', self._home.name)} or start another with --name"
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def command_for(verb: str, name: str) -> str:
    """Spell a command about a cluster, for messages."""
    return f"'gangline {verb}'" if name == DEFAULT_NAME else f"'gangline {verb} --name {name}'"


def process_start(pid: int) -> int:
    """Return when a process began, in the kernel's ticks; 0 if there is none, or only its shell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    # The second field, the program's name, may itself hold spaces and parentheses.
    fields = stat.rpartition(")")[2].split()
    return 0 if fields[0] == "Z" else int(fields[19])
