"""The embedded clusters of this machine: which of them run, and their kubeconfigs.

``gangline.local`` writes ``$GANGLINE_HOME/clusters/NAME/run.json`` when a cluster starts. A record
counts only while its process lives, so a file that a killed cluster left is ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec


class RunRecord(msgspec.Struct, frozen=True):
    """The process that runs a cluster."""

    pid: int
    process_start: int
    """The start time of the process in kernel ticks; a later process with the same pid has another
    one.
    """

    url: str
    since: datetime

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return process_start_ticks(self.pid) == self.process_start


@dataclass(frozen=True, slots=True)
class RunningCluster:
    """A running cluster of this machine."""

    name: str
    folder: Path
    url: str

    @property
    def kubeconfig(self) -> Path:
        """Its address and an administrator's credentials."""
        return self.folder / "kubeconfig"


def embedded_home(environment: Mapping[str, str]) -> Path:
    """The directory of all clusters: ``$GANGLINE_HOME``, else ``~/.gangline``."""
    home = Path(environment.get("HOME") or Path.home())
    return Path(environment.get("GANGLINE_HOME") or home / ".gangline")


def running_clusters(home: Path) -> list[RunningCluster]:
    """Return the running clusters of a directory by name; of other users' directories none."""
    try:
        folders = sorted((home / "clusters").iterdir())
    except OSError:
        return []
    records = ((folder, read_run_record(folder)) for folder in folders)
    return [
        RunningCluster(folder.name, folder, record.url)
        for folder, record in records
        if record is not None and record.is_alive
    ]


def read_run_record(folder: Path) -> RunRecord | None:
    """Return the record of the last process that ran the cluster of a folder, alive or not."""
    try:
        return msgspec.json.decode((folder / "run.json").read_bytes(), type=RunRecord)
    except (OSError, msgspec.DecodeError):
        return None


def process_start_ticks(pid: int) -> int:
    """Return the start time of a process in kernel ticks; 0 if there is none or it is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    # The second field, the program's name, may itself hold spaces and parentheses.
    fields = stat.rpartition(")")[2].split()
    return 0 if fields[0] == "Z" else int(fields[19])
