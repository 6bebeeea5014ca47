"""Writes OCI images (https://github.com/opencontainers/image-spec) without a daemon or a registry.

The same files give the same bytes: entries are sorted, owned by root and of one time, and the
compressed layers have no time of their own. ``skopeo copy oci:FOLDER:TAG ...`` copies an image to a
registry, ``ctr images import`` and ``podman load`` read the archive.
"""

import gzip
import hashlib
import json
import stat
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
INDEX = "application/vnd.oci.image.index.v1+json"
_COMPRESSION = 9
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Layer:
    """A written layer."""

    digest: str
    size: int
    diff_id: str
    """Digest of the uncompressed archive."""
    created_by: str


@dataclass(frozen=True)
class ImageSettings:
    """What a container of the image runs, and its labels."""

    entrypoint: Sequence[str]
    command: Sequence[str] = ()
    user: str = "65532:65532"
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    working_dir: str = "/"
    architecture: str = "amd64"


class _DigestWriter:
    """A file that is hashed while it is written."""

    def __init__(self, file: BinaryIO | None) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.size = 0

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        self.size += len(data)
        return self._file.write(data) if self._file is not None else len(data)

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()


class _Tee:
    """Hashes the uncompressed archive on its way to the compressor."""

    def __init__(self, compressed: BinaryIO) -> None:
        self.plain = _DigestWriter(None)
        self._compressed = compressed

    def write(self, data: bytes) -> int:
        self.plain.write(data)
        return self._compressed.write(data)


class OciLayout:
    """An image layout in a folder, which is created."""

    def __init__(self, folder: Path, epoch: int) -> None:
        self._folder = folder
        self._epoch = epoch
        self._blobs = folder / "blobs" / "sha256"
        self._blobs.mkdir(parents=True)
        (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')

    def add_layer(self, root: Path, created_by: str) -> Layer:
        """Write the files below ``root`` as a layer."""
        unfinished = self._blobs / "unfinished"
        with unfinished.open("wb") as file:
            compressed = _DigestWriter(file)
            with gzip.GzipFile("", "wb", _COMPRESSION, compressed, mtime=0) as packed:  # type: ignore[arg-type]
                tee = _Tee(packed)  # type: ignore[arg-type]
                write_archive(tee, root, self._epoch)  # type: ignore[arg-type]
        layer = Layer(compressed.digest, compressed.size, tee.plain.digest, created_by)
        unfinished.rename(self._blobs / layer.digest.partition(":")[2])
        return layer

    def add_image(
        self, layers: Sequence[Layer], settings: ImageSettings, name: str, tag: str
    ) -> str:
        """Write an image of these layers, and an index with it alone; return its digest."""
        config = self._add_json(image_config(layers, settings, self._epoch), CONFIG)
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config,
            "layers": [
                {"mediaType": LAYER, "digest": layer.digest, "size": layer.size} for layer in layers
            ],
            "annotations": dict(settings.labels),
        }
        described = self._add_json(manifest, MANIFEST)
        described["annotations"] = {
            "org.opencontainers.image.ref.name": tag,
            "io.containerd.image.name": f"docker.io/library/{name}:{tag}",
        }
        described["platform"] = {"architecture": settings.architecture, "os": "linux"}
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [described]}
        (self._folder / "index.json").write_bytes(_encode(index))
        return str(described["digest"])

    def write_archive(self, target: Path) -> None:
        """Write the layout as one file."""
        with target.open("wb") as file:
            write_archive(file, self._folder, self._epoch)

    def _add_json(self, document: Mapping[str, Any], media_type: str) -> dict[str, Any]:
        data = _encode(document)
        digest = hashlib.sha256(data).hexdigest()
        (self._blobs / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def image_config(layers: Sequence[Layer], settings: ImageSettings, epoch: int) -> dict[str, Any]:
    """Return the configuration of an image."""
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    config: dict[str, Any] = {
        "User": settings.user,
        "Env": [f"{key}={value}" for key, value in sorted(settings.environment.items())],
        "Entrypoint": list(settings.entrypoint),
        "Cmd": list(settings.command),
        "WorkingDir": settings.working_dir,
        "Labels": dict(settings.labels),
    }
    return {
        "created": created,
        "architecture": settings.architecture,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [{"created": created, "created_by": layer.created_by} for layer in layers],
    }


def _encode(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def write_archive(target: BinaryIO, root: Path, epoch: int) -> None:
    """Write the files below ``root`` as a tar archive, without what differs between machines."""
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted_paths(root):
            _add_entry(archive, path, path.relative_to(root).as_posix(), epoch)


def sorted_paths(root: Path) -> Iterable[Path]:
    """Return everything below a folder, each folder before its content."""
    return sorted(root.rglob("*"), key=lambda path: path.relative_to(root).parts)


def _add_entry(archive: tarfile.TarFile, path: Path, name: str, epoch: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.mtime = epoch
    mode = path.lstat().st_mode
    # Permissions depend on the umask of who builds; special bits are dropped.
    executable = bool(mode & stat.S_IXUSR)
    entry.mode = 0o755 if executable or stat.S_ISDIR(mode) else 0o644
    if stat.S_ISLNK(mode):
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
        archive.addfile(entry)
    elif stat.S_ISDIR(mode):
        entry.type = tarfile.DIRTYPE
        archive.addfile(entry)
    elif stat.S_ISREG(mode):
        entry.size = path.stat().st_size
        with path.open("rb") as file:
            archive.addfile(entry, file)
