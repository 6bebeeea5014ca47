"""Code that pods fetch before they start: from git, by rsync, or uploaded from this machine.

An init container writes it to a volume that the main container mounts at ``WORKING_DIR/code``. For
an upload, ``pack_code`` packs a local folder into ConfigMaps. Invariant: user names and passwords
are in a Secret of the job, and only the init container reads it. The command of a TrainJob does
what the init container does, as its runtime takes none.
"""

import base64
import errno
import fnmatch
import gzip
import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.submit.flags import JobFlags, Manifest, Mount, non_empty, owned_object

IGNORE_FILES = (".ganglineignore", ".arenaignore")
ALWAYS_IGNORED = (".git", "__pycache__", ".venv", ".mypy_cache", ".pytest_cache", "*.pyc")
PART_BYTES = 700_000
"""Size of one ConfigMap's part: base64 keeps it below the limit of 1 MiB for an object."""
MAX_BYTES = 7_000_000
"""Limit of the packed size. Larger code belongs in an image, a repository or a volume."""
MAX_UNPACKED_BYTES = 200_000_000


@dataclass(frozen=True, slots=True)
class PackedCode:
    """A packed folder."""

    name: str
    parts: list[bytes]
    sha256: str
    skipped: list[str]
    """Links that lead nowhere or in a circle, with the reason."""
    commit: str = ""
    """Commit of the git repository that contains the folder; empty without a repository."""
    dirty: bool = False

    def annotations(self) -> dict[str, str]:
        """Return annotations of the job that identify its code."""
        annotations = {"gangline.dev/code-sha256": self.sha256}
        if self.commit:
            annotations |= {
                "gangline.dev/git-commit": self.commit,
                "gangline.dev/git-dirty": str(self.dirty).lower(),
            }
        return annotations


def pack_code(folder: Path) -> PackedCode:
    """Pack a folder as rsync would copy it, but links inside the folder are followed.

    The digest is of names, modes and content; times do not count.

    Raises:
        CommandError: the folder cannot be read, or is too large to be sent.
    """
    if not folder.is_dir():
        raise _refused(f"--sync-source {str(folder)!r} is not a folder", "Give an existing folder.")
    tree = _Tree(folder, _ignored(folder))
    try:
        entries = list(tree.entries(folder, (folder.resolve(),)))
        size = sum(source.stat().st_size for _, source in entries if source.is_file())
        if size > MAX_UNPACKED_BYTES:
            raise _too_large(folder, size)
        packed, digest = _tar(entries)
    except OSError as error:
        hint = f"Make it readable, or list it in {folder / IGNORE_FILES[0]}."
        raise _refused(f"{error.filename} cannot be read: {error.strerror}", hint) from error
    if len(packed) > MAX_BYTES:
        raise _too_large(folder, len(packed))
    commit, dirty = _git_state(folder)
    return PackedCode(
        name=folder.resolve().name or "code",
        parts=[packed[at : at + PART_BYTES] for at in range(0, len(packed), PART_BYTES)],
        sha256=digest,
        skipped=tree.skipped,
        commit=commit,
        dirty=dirty,
    )


def _tar(entries: Sequence[tuple[str, Path]]) -> tuple[bytes, str]:
    raw, digest = io.BytesIO(), hashlib.sha256()
    with (
        gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, path in entries:
            entry = archive.gettarinfo(str(path), name)
            if entry.islnk():  # A second link to a file: its content comes again, as with rsync.
                entry.type, entry.linkname, entry.size = tarfile.REGTYPE, "", path.stat().st_size
            entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, "", ""
            written, entry.mtime = int(entry.mtime), 0
            digest.update(entry.tobuf())
            entry.mtime = written
            content = path.read_bytes() if entry.isfile() else b""
            entry.size = len(content)
            digest.update(content)
            archive.addfile(entry, io.BytesIO(content))
    return raw.getvalue(), digest.hexdigest()


def _ignored(folder: Path) -> list[str]:
    patterns = list(ALWAYS_IGNORED)
    for name in IGNORE_FILES:
        path = folder / name
        if path.is_file():
            lines = (line.strip() for line in path.read_text(errors="replace").splitlines())
            patterns += [line for line in lines if line and not line.startswith("#")]
    return patterns


class _Tree:
    """The files and folders below a folder, in the order of their names."""

    def __init__(self, top: Path, ignored: Sequence[str]) -> None:
        self._top, self._ignored = top, ignored
        self.skipped: list[str] = []

    def entries(self, folder: Path, inside: tuple[Path, ...]) -> Iterator[tuple[str, Path]]:
        """Yield the name and the source of each entry. ``inside`` are the real folders around it.

        A link that leads out of the tree stays a link: it may lead somewhere in the container.
        """
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            path = folder / entry.name
            if _is_ignored(path, self._top, self._ignored):
                continue
            name, real = path.relative_to(self._top).as_posix(), path
            if entry.is_symlink():
                try:
                    real = path.resolve(strict=True)
                except (OSError, RuntimeError) as error:
                    loops = isinstance(error, RuntimeError) or error.errno == errno.ELOOP
                    reason = "leads in a circle" if loops else "leads nowhere"
                    self.skipped.append(f"{name} -> {os.readlink(path)} {reason}")
                    continue
                if real in inside:
                    self.skipped.append(f"{name} -> {os.readlink(path)} leads in a circle")
                    continue
                if inside[0] not in real.parents:
                    yield name, path
                    continue
            if real.is_dir():
                yield name, real
                yield from self.entries(path, (*inside, real.resolve()))
            elif real.is_file():
                yield name, real


def _is_ignored(path: Path, folder: Path, patterns: Sequence[str]) -> bool:
    relative = path.relative_to(folder).as_posix()
    for written in patterns:
        pattern = written.rstrip("/")
        if pattern.startswith("/"):
            if fnmatch.fnmatchcase(relative, pattern[1:]):
                return True
        elif fnmatch.fnmatchcase(path.name, pattern) or fnmatch.fnmatchcase(relative, pattern):
            return True
    return False


def _git_state(folder: Path) -> tuple[str, bool]:
    """Return the folder's commit, and whether it has uncommitted changes; empty without git."""
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return commit, bool(_git(folder, "status", "--porcelain", "--", "."))
    except (OSError, subprocess.SubprocessError):
        return "", False


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.strip()


def _too_large(folder: Path, size: int) -> CommandError:
    return _refused(
        f"the code in {folder} has {size / 1e6:.1f} MB; at most {MAX_BYTES / 1e6:.0f} MB packed "
        "can be uploaded",
        f"List files to leave out in {folder / IGNORE_FILES[0]}, or use --sync-mode git.",
    )


def _refused(message: str, hint: str) -> CommandError:
    return CommandError(message, hint=hint, code=ExitCode.USAGE)


GIT_IMAGE = "alpine/git:2.47.2"
RSYNC_IMAGE = "instrumentisto/rsync-ssh:alpine3.20"
CODE_VOLUME, MOUNT_PATH = "code-sync", "/code"
CODE_FOLDER = "code"
"""The subfolder of the working folder with the code."""
INIT_CONTAINER = "init-code"
_PREFIX = "GIT_SYNC_"
_CREDENTIALS = ("GIT_SYNC_USERNAME", "GIT_SYNC_PASSWORD")

_GIT = """\
set -e
export GIT_TERMINAL_PROMPT=0
case "$GIT_SYNC_BRANCH" in "") branch= ;; *) branch="--branch $GIT_SYNC_BRANCH" ;; esac
case "$GIT_SYNC_DEPTH" in ""|0) depth= ;; *) depth="--depth $GIT_SYNC_DEPTH" ;; esac
helper='!f() { echo "username=$GIT_SYNC_USERNAME"; echo "password=$GIT_SYNC_PASSWORD"; }; f'
if [ -n "$GIT_SYNC_PASSWORD" ]; then set -- -c credential.helper="$helper"; fi
rm -rf "/code/$GIT_SYNC_DEST"
git "$@" clone $branch $depth -- "$GIT_SYNC_REPO" "/code/$GIT_SYNC_DEST"
cd "/code/$GIT_SYNC_DEST"
if [ -n "$GIT_SYNC_REV" ]; then git checkout --quiet "$GIT_SYNC_REV"; fi
git log -1 --format='code is at commit %H'
"""
_RSYNC = 'rsync -a -v "$RSYNC_SOURCE" /code'
_UNPACK = """\
set -e
mkdir -p "/code/$CODE_NAME"
cat /uploaded/part-* | tar -xpzf - -C "/code/$CODE_NAME"
"""


@dataclass(frozen=True, slots=True)
class CodeSync:
    """The source of the code."""

    mode: str
    """git, rsync or local; empty for none."""
    source: str = ""
    image: str = ""


def add_git_sync(flags: JobFlags, sync: CodeSync) -> tuple[JobFlags, list[Manifest]]:
    """Return the job with an init container that clones, and a Secret if the clone needs one."""
    source, from_source = _without_credentials(sync.source)
    variables = {variable["name"]: variable for variable in flags.pod.environment}
    secret = from_source | {
        name: variables[name]["value"]
        for name in _CREDENTIALS
        if "value" in variables.get(name, {})
    }
    ours = {"GIT_SYNC_REPO": source, "GIT_SYNC_DEST": repository_name(source)}
    environment = [variable for name, variable in variables.items() if name not in {*secret, *ours}]
    environment += [
        {"name": name, "value": variables.get(name, {}).get("value", value)}
        for name, value in ours.items()
    ]
    secret_name = f"{flags.name}-code-sync"
    environment += [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret_name, "key": name}}}
        for name in secret
    ]
    init = _init_container(flags, sync.image or GIT_IMAGE, _GIT, environment)
    # The main container does not need the variables of the clone.
    others = [variable for name, variable in variables.items() if not name.startswith(_PREFIX)]
    job = replace(flags, pod=replace(flags.pod, environment=tuple(others)))
    return _add_code_volume(job, init), [_secret(flags, secret_name, secret)] if secret else []


def add_rsync(flags: JobFlags, sync: CodeSync) -> tuple[JobFlags, list[Manifest]]:
    """Return the job with an init container that copies by rsync."""
    environment = [*flags.pod.environment, {"name": "RSYNC_SOURCE", "value": sync.source}]
    return _add_code_volume(
        flags, _init_container(flags, sync.image or RSYNC_IMAGE, _RSYNC, environment)
    ), []


def add_upload(
    flags: JobFlags, sync: CodeSync, name: str, parts: list[bytes]
) -> tuple[JobFlags, list[Manifest]]:
    """Return the job with an init container that unpacks, and ConfigMaps with the packed code."""
    maps, sources = [], []
    for number, part in enumerate(parts):
        key, map_name = f"part-{number:03}", f"{flags.name}-code-{number}"
        content = base64.b64encode(part).decode()
        maps.append(
            owned_object(flags.name, {"apiVersion": "v1", "kind": "ConfigMap"}, map_name)
            | {"binaryData": {key: content}}
        )
        sources.append({"configMap": {"name": map_name}})
    uploaded: Mount = (
        {"name": "uploaded-code", "projected": {"sources": sources}},
        {"name": "uploaded-code", "mountPath": "/uploaded", "readOnly": True},
    )
    environment = [{"name": "CODE_NAME", "value": name}]
    init = _init_container(flags, sync.image or flags.pod.image, _UNPACK, environment)
    init["volumeMounts"].append(uploaded[1])
    job = _add_code_volume(flags, init)
    code = (*job.pod.code, (uploaded[0], {**uploaded[1]}))
    return replace(job, pod=replace(job.pod, code=code)), maps


def repository_name(source: str) -> str:
    """Return the folder that a clone of ``source`` creates."""
    path = urlsplit(source).path if "://" in source else source.rpartition(":")[2]
    return path.rstrip("/").rpartition("/")[2].removesuffix(".git") or "repository"


def _without_credentials(source: str) -> tuple[str, dict[str, str]]:
    """Remove user name and password from a URL; return both separately."""
    parts = urlsplit(source)
    if parts.scheme not in {"http", "https"} or parts.username is None:
        return source, {}
    credentials = {"GIT_SYNC_USERNAME": unquote(parts.username)}
    if parts.password is not None:
        credentials["GIT_SYNC_PASSWORD"] = unquote(parts.password)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=host)), credentials


def _secret(flags: JobFlags, name: str, values: dict[str, str]) -> Manifest:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    head = {"apiVersion": "v1", "kind": "Secret"}
    return owned_object(flags.name, head, name) | {"type": "Opaque", "data": encoded}


def _init_container(
    flags: JobFlags, image: str, script: str, environment: list[Manifest]
) -> Manifest:
    amounts = {
        name: flags.pod.amounts[name] for name in ("cpu", "memory") if name in flags.pod.amounts
    }
    return non_empty(
        {
            "name": INIT_CONTAINER,
            "image": image,
            "imagePullPolicy": flags.pod.pull_policy,
            "command": ["sh", "-c", script],
            "env": environment,
            "volumeMounts": [{"name": CODE_VOLUME, "mountPath": MOUNT_PATH}],
            "resources": {"requests": amounts, "limits": dict(amounts)} if amounts else {},
        }
    )


def _add_code_volume(flags: JobFlags, init: Manifest) -> JobFlags:
    where = f"{flags.pod.working_dir.rstrip('/')}/{CODE_FOLDER}"
    code: Mount = ({"name": CODE_VOLUME, "emptyDir": {}}, {"name": CODE_VOLUME, "mountPath": where})
    pod = replace(
        flags.pod,
        code=(*flags.pod.code, code),
        init_containers=(*flags.pod.init_containers, init),
    )
    return replace(flags, pod=pod)
