"""The folder in shared memory of one job on one node, and the locks that protect it.

    /dev/shm/gangline-UID-KEY/
        settings.json      settings of the saver; written by the training process
        saver.lock         locked by the running saver
        saver.sock         where training processes connect to the saver
        stored.json        newest step that storage had when the saver last committed one, its plan
        abandoned.json     abandoned branches; see ``storage.branches``
        port               where savers of other nodes connect to it
        job.lock           locked, shared, by each running training process
        r00003.lock        locked by the process of rank 3: no second one saves as the same rank
        r00003-s1.seg      second buffer of rank 3
        copy-r00007.seg    copy from another node

Invariant: a folder without any locked file belongs to a dead job. The next checkpointer on the
machine removes it after ten minutes.

Every user of the machine can create names in shared memory, also those of another user's jobs. A
checkpoint decides what a training process computes, so a folder or file is used only if it belongs
to this user and no other user can write to it.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import pwd
import re
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from gangline.elastic.checkpoint.errors import FolderInUseError, InsecureMemoryError

SHARED_MEMORY = Path("/dev/shm")
MEMORY_VARIABLE = "GANGLINE_CHECKPOINT_MEMORY"
"""Environment variable that names a folder in place of /dev/shm; it should be in memory."""
ABANDONED_AFTER_S = 600.0
"""A folder without any lock is retained this long, because restarts take time."""
_SEGMENT = re.compile(r"^(?:r(?P<rank>\d+)-s(?P<slot>\d+)|copy-r(?P<copy>\d+))\.seg$")
_DYING_S = 5.0
"""Seconds that the previous process of the rank may take to end after a restart."""
_POLL_S = 0.05
_MAX_PID_BYTES = 32


class SaverSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """Settings of a job's saver.

    Unset fields are not written, so that savers of an earlier release read what they know.
    """

    target: str
    """Folder or URL that checkpoints are written to."""
    job: str
    keep: int = 3
    """Number of newest checkpoints to retain in storage; 0 retains all."""
    keep_every: int = 0
    """Multiples of this step are retained for ever; 0 means none."""
    bandwidth: float = 0.0
    """Limit in bytes per second to storage, for this node; 0 means no limit."""
    linger_s: float = 120.0
    """Seconds that the memory of a job without processes is retained for a restart."""
    options: dict[str, str] = {}
    """Options for fsspec: endpoint, profile, …"""
    token: str = ""
    """Secret shared by the job's savers; new for each run."""
    address: str = ""
    """``host:port`` at which other nodes reach this node's saver; empty if there are none."""
    peer: str = ""
    """``host:port`` of the saver that stores this node's copies; empty for none."""
    hosts: list[str] = []
    """The host of each rank."""
    refusal: str = ""
    """Why nothing may be written to the target; empty if it may."""


def shared_memory_root(environment: Mapping[str, str]) -> Path:
    return Path(environment.get(MEMORY_VARIABLE) or SHARED_MEMORY)


def job_name(environment: Mapping[str, str], target: str) -> str:
    """Return the job's name from the operator or the launcher, else one made from the target."""
    parts = [environment.get(name, "") for name in ("ELASTIC_JOB_NAME", "JOB_UID")]
    named = "/".join(part for part in parts if part)
    return named or environment.get("TORCHELASTIC_RUN_ID", "") or f"folder:{target}"


def job_directory(base: Path, job: str, target: str) -> Path:
    """Return the folder of one job and target; a job may write to several targets."""
    digest = hashlib.sha256(f"{job}\0{target}".encode()).hexdigest()[:16]
    return base / f"gangline-{os.getuid()}-{digest}"


def create_job_directory(base: Path, job: str, target: str) -> Path:
    """Create the folder of a job, or take the existing one.

    Raises InsecureMemoryError: another user owns it or can reach it.
    """
    job_folder = job_directory(base, job, target)
    base.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        job_folder.mkdir(mode=0o700)
    check_job_directory(job_folder)
    return job_folder


def check_job_directory(job_folder: Path) -> None:
    """Check that only this user can reach a job's folder.

    Raises:
        InsecureMemoryError: another user can, or the path is no folder.
        FileNotFoundError: there is no such folder.
    """
    # In a folder with the sticky bit, as /dev/shm, no other user can replace what is found here.
    status = os.lstat(job_folder)
    if not stat.S_ISDIR(status.st_mode):
        fault = f"is {_describe_kind(status.st_mode)}, not a folder"
    elif status.st_uid != os.geteuid():
        fault = f"belongs to {_describe_user(status.st_uid)}"
    elif status.st_mode & 0o077:
        fault = f"is open to other users (mode {stat.S_IMODE(status.st_mode):04o}, not 0700)"
    else:
        return
    raise InsecureMemoryError(
        f"{job_folder} {fault}, so another user could read and replace the checkpoints of "
        f"{_describe_user(os.geteuid())}: remove it (as its owner or as root), or set "
        f"{MEMORY_VARIABLE} to a folder in memory that only this user can write to"
    )


def _describe_user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return f"user {uid}"


def _describe_kind(mode: int) -> str:
    return "a symbolic link" if stat.S_ISLNK(mode) else "a file"


def list_job_directories(base: Path) -> list[Path]:
    """Return the folders of this user's jobs. Those that another user can change are left out."""
    folders = []
    for job_folder in sorted(base.glob(f"gangline-{os.getuid()}-*")):
        with contextlib.suppress(InsecureMemoryError, FileNotFoundError):
            check_job_directory(job_folder)
            folders.append(job_folder)
    return folders


def open_own(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open a regular file of this user.

    Raises:
        InsecureMemoryError: it is a link or no regular file, belongs to another user, or other
            users can write to it.
        OSError: as of ``os.open``.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise InsecureMemoryError(f"{path} is a symbolic link: remove it") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        fault = "is not a regular file"
    elif status.st_uid != os.geteuid():
        fault = f"belongs to {_describe_user(status.st_uid)}"
    elif status.st_mode & 0o022:
        fault = f"can be written by other users (mode {stat.S_IMODE(status.st_mode):04o})"
    else:
        return descriptor
    os.close(descriptor)
    raise InsecureMemoryError(f"{path} {fault}: remove it")


def segment_path(job_folder: Path, rank: int, slot: int) -> Path:
    return job_folder / f"r{rank:05d}-s{slot}.seg"


@contextlib.contextmanager
def socket_address(job_folder: Path) -> Iterator[str]:
    """Yield the address of the saver's socket in a form that is short enough for a Unix socket.

    Linux allows 107 bytes, and the path of the folder may be longer.
    """
    folder = os.open(job_folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/saver.sock"
    finally:
        os.close(folder)


def copy_segment_path(job_folder: Path, rank: int) -> Path:
    return job_folder / f"copy-r{rank:05d}.seg"


def list_segments(job_folder: Path) -> list[tuple[int, int | None, Path]]:
    """Return rank, buffer number (``None`` for copies) and path of each existing segment."""
    segments = []
    for path in sorted(job_folder.glob("*.seg")):
        match = _SEGMENT.match(path.name)
        if match is None:
            continue
        own = match["rank"] is not None
        rank = int(match["rank"] if own else match["copy"])
        segments.append((rank, int(match["slot"]) if own else None, path))
    return segments


def write_settings(job_folder: Path, settings: SaverSettings) -> None:
    """Replace the settings atomically."""
    write_file(job_folder / "settings.json", msgspec.json.encode(settings))


def read_settings(job_folder: Path) -> SaverSettings | None:
    """Return the settings, or ``None`` if there are none yet."""
    try:
        return msgspec.json.decode(
            read_file(job_folder / "settings.json") or b"", type=SaverSettings
        )
    except msgspec.MsgspecError:
        return None


def write_stored_step(job_folder: Path, step: int | None, plan: str = "") -> None:
    """Record the newest step in storage, if any, and its plan."""
    write_file(job_folder / "stored.json", msgspec.json.encode((step, plan)))


def read_stored_step(job_folder: Path) -> tuple[int, str] | None:
    """Return the newest step that storage has had, as recorded; ``None`` if none was."""
    try:
        data = read_file(job_folder / "stored.json")
        step, plan = msgspec.json.decode(data or b'[null,""]', type=tuple[int | None, str])
    except msgspec.MsgspecError:
        return None
    return None if step is None else (step, plan)


def write_file(path: Path, data: bytes) -> None:
    """Replace a small file of the job's folder atomically."""
    temporary = path.with_suffix(f".{os.getpid()}.new")
    with open(open_own(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as stream:
        stream.write(data)
    temporary.rename(path)


def read_file(path: Path) -> bytes | None:
    """Return the content of a file of the job's folder; ``None`` if there is none of this user."""
    try:
        with open(open_own(path, os.O_RDONLY), "rb") as file:
            return file.read()
    except (FileNotFoundError, InsecureMemoryError):
        return None


def try_flock(descriptor: int, exclusive: bool) -> bool:
    """Lock an open file without waiting; return whether it is locked now."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class FileLock:
    """A lock on a file of the job's folder; the kernel releases it when the process ends."""

    def __init__(self, path: Path) -> None:
        self.descriptor = open_own(path, os.O_RDWR | os.O_CREAT)

    def acquire(self, exclusive: bool) -> bool:
        """Lock the file if no conflicting lock exists; return whether it is locked."""
        return try_flock(self.descriptor, exclusive)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class RankLock:
    """A lock on ``r00003.lock`` in the job's folder; the kernel releases it with the process.

    It belongs to the process (fcntl(2), record locks): data loader workers that outlive a killed
    rank do not retain it.
    """

    def __init__(self, job_folder: Path, rank: int, target: str) -> None:
        """Take the lock. Raises FolderInUseError: another process saves as this rank."""
        self._descriptor = open_own(job_folder / f"r{rank:05d}.lock", os.O_RDWR | os.O_CREAT)
        deadline = time.monotonic() + _DYING_S
        while not self._acquire():
            if time.monotonic() >= deadline:
                holder = os.pread(self._descriptor, _MAX_PID_BYTES, 0).decode().strip()
                self.close()
                raise FolderInUseError(
                    f"process {holder} saves to {target} as rank {rank} too: call "
                    "torch.distributed.init_process_group() before the Checkpointer is created, so "
                    "that the ranks save together, or give each process a folder of its own"
                )
            time.sleep(_POLL_S)
        os.pwrite(self._descriptor, str(os.getpid()).ljust(_MAX_PID_BYTES).encode(), 0)

    def _acquire(self) -> bool:
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def is_job_running(job_folder: Path) -> bool:
    """Return whether any training process of the job is running, by its lock."""
    with _probe(job_folder / "job.lock") as free:
        return not free


def is_saver_running(job_folder: Path) -> bool:
    """Return whether the job's saver is running, by its lock."""
    with _probe(job_folder / "saver.lock") as free:
        return not free


@contextlib.contextmanager
def _probe(path: Path) -> Iterator[bool]:
    if not path.exists():
        yield True
        return
    lock = FileLock(path)
    try:
        yield lock.acquire(exclusive=True)
    finally:
        lock.close()


def remove_abandoned(base: Path, now: float, keep: Path | None = None) -> list[Path]:
    """Remove the folders of this user's dead jobs; return the removed ones."""
    removed = []
    for job_folder in list_job_directories(base):
        if job_folder == keep:
            continue
        with contextlib.suppress(FileNotFoundError):
            if now - _touched(job_folder) < ABANDONED_AFTER_S:
                continue
            with (
                _probe(job_folder / "job.lock") as jobless,
                _probe(job_folder / "saver.lock") as saverless,
            ):
                if jobless and saverless:
                    shutil.rmtree(job_folder, ignore_errors=True)
                    removed.append(job_folder)
    return removed


def _touched(job_folder: Path) -> float:
    return max(path.stat().st_mtime for path in [job_folder, *job_folder.iterdir()])
