"""The folder in shared memory that belongs to one job on one node, and who may take it away.

    /dev/shm/gangline-UID-KEY/
        settings.json      what the saver needs to know; written by the training process
        saver.lock         held by the saver that lives
        saver.sock         where training processes speak to it
        port               where other nodes' savers speak to it
        job.lock           held, shared, by each training process that lives
        r00003-s1.seg      rank 3's second buffer
        copy-r00007.seg    what was copied from another node

A folder nobody holds a lock of belongs to a dead job: the next checkpointer on the machine removes
it.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

SHARED_MEMORY = Path("/dev/shm")
MEMORY_VARIABLE = "GANGLINE_CHECKPOINT_MEMORY"
"""Environment variable that names another folder than /dev/shm; it should be in memory."""
ABANDONED_AFTER_S = 600.0
"""A folder without any holder is left alone this long, for restarts that take their time."""
_SEGMENT = re.compile(r"^(?:r(?P<rank>\d+)-s(?P<slot>\d+)|copy-r(?P<copy>\d+))\.seg$")


class Settings(msgspec.Struct, frozen=True):
    """What a saver needs to know of its job."""

    target: str
    """Folder or URL that checkpoints are written to."""
    job: str
    keep: int = 3
    """How many of the newest checkpoints stay in storage; 0 keeps all."""
    keep_every: int = 0
    """Steps that are multiples of it stay for ever; 0 is none."""
    bandwidth: float = 0.0
    """Bytes per second to storage at most, for this node; 0 is without limit."""
    linger_s: float = 120.0
    """How long the memory of a job whose processes are gone waits for a restart."""
    options: dict[str, str] = {}
    """What fsspec is told about the target: endpoint, profile, …"""
    token: str = ""
    """Secret of the job's savers among themselves; made anew for each run."""
    address: str = ""
    """``host:port`` at which other nodes reach this node's saver; empty when there are none."""
    peer: str = ""
    """``host:port`` of the saver that keeps this node's copies; empty for none."""


def base_folder(environment: Mapping[str, str]) -> Path:
    """Where shared memory is."""
    return Path(environment.get(MEMORY_VARIABLE) or SHARED_MEMORY)


def job_name(environment: Mapping[str, str], target: str) -> str:
    """What tells jobs apart: the name that the operator gave, or else the folder."""
    parts = [environment.get(name, "") for name in ("ELASTIC_JOB_NAME", "JOB_UID")]
    named = "/".join(part for part in parts if part)
    return named or environment.get("TORCHELASTIC_RUN_ID", "") or f"folder:{target}"


def home_of(base: Path, job: str, target: str) -> Path:
    """The job's folder: one for each job and target, as a job may write to several."""
    digest = hashlib.sha256(f"{job}\0{target}".encode()).hexdigest()[:16]
    return base / f"gangline-{os.getuid()}-{digest}"


def segment_path(home: Path, rank: int, slot: int) -> Path:
    """A buffer of a rank."""
    return home / f"r{rank:05d}-s{slot}.seg"


@contextlib.contextmanager
def socket_address(home: Path) -> Iterator[str]:
    """Where training processes speak to the saver, as a name that is short enough for a socket.

    Linux takes 107 bytes, and the folder's own name may be longer.
    """
    folder = os.open(home, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/saver.sock"
    finally:
        os.close(folder)


def copy_path(home: Path, rank: int) -> Path:
    """A copy of another node's rank."""
    return home / f"copy-r{rank:05d}.seg"


def segments(home: Path) -> list[tuple[int, int | None, Path]]:
    """Rank, buffer number (``None`` for copies) and path of each segment that is there."""
    found = []
    for path in sorted(home.glob("*.seg")):
        match = _SEGMENT.match(path.name)
        if match is None:
            continue
        own = match["rank"] is not None
        rank = int(match["rank"] if own else match["copy"])
        found.append((rank, int(match["slot"]) if own else None, path))
    return found


def write_settings(home: Path, settings: Settings) -> None:
    """Put the settings there at once."""
    fresh = home / f"settings.{os.getpid()}.new"
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as stream:
        stream.write(msgspec.json.encode(settings))
    fresh.rename(home / "settings.json")


def read_settings(home: Path) -> Settings | None:
    """The settings, or ``None`` while there are none."""
    try:
        return msgspec.json.decode((home / "settings.json").read_bytes(), type=Settings)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


class Hold:
    """A lock on a file of the home, that ends with the process."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self, exclusive: bool) -> bool:
        """Take it if nobody is in the way."""
        try:
            fcntl.flock(
                self.descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB
            )
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Give it back."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def open_home(base: Path, job: str, target: str) -> Path:
    """Make the job's folder if it is not there."""
    home = home_of(base, job, target)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    return home


def job_lives(home: Path) -> bool:
    """Whether any training process of the job holds its lock."""
    with _probe(home / "job.lock") as free:
        return not free


@contextlib.contextmanager
def _probe(path: Path) -> Iterator[bool]:
    if not path.exists():
        yield True
        return
    hold = Hold(path)
    try:
        yield hold.take(exclusive=True)
    finally:
        hold.close()


def reclaim(base: Path, now: float, but: Path | None = None) -> list[Path]:
    """Remove the homes of this user's dead jobs; returns those removed."""
    removed = []
    for home in base.glob(f"gangline-{os.getuid()}-*"):
        if home == but or not home.is_dir():
            continue
        with contextlib.suppress(FileNotFoundError):
            if now - _touched(home) < ABANDONED_AFTER_S:
                continue
            with _probe(home / "job.lock") as jobless, _probe(home / "saver.lock") as saverless:
                if jobless and saverless:
                    shutil.rmtree(home, ignore_errors=True)
                    removed.append(home)
    return removed


def _touched(home: Path) -> float:
    return max(
        (path.stat().st_mtime for path in [home, *home.iterdir()]), default=home.stat().st_mtime
    )


def wall_clock() -> float:
    """Seconds since the epoch, as file times are."""
    return time.time()
