"""Scalars of TensorBoard's event files, without TensorBoard.

A file is a sequence of records (length, checksum, data, checksum; little-endian). The data are a
protobuf message ``Event``, of which time, step and scalar summaries are read: old ones
(``simple_value``) and tensors of one number. A file that grows is read from where the last reading
ended. What cannot be read is left out: files come from programs of users.
"""

import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

FOLDER_VARIABLES: Final = ("TENSORBOARD_LOGGING_DIR", "TENSORBOARD_LOGDIR", "TENSORBOARD_LOG_DIR")
"""Variables that name the folder of event files; the first is that of transformers."""
LOGS_VOLUME: Final = "training-logs-volume"
"""Volume that a job shares with its TensorBoard."""
MAX_FILES: Final = 32
MAX_READ: Final = 4 << 20
"""Bytes of one file that one reading takes."""
_MAX_DEPTH = 3
_HEADER, _FOOTER = 12, 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FLOAT, _DOUBLE = 1, 2
"""Types of tensors."""


class Scalar(NamedTuple):
    """One number at one time."""

    at_ms: int
    step: int
    name: str
    value: float


def find_folder(
    manifest: Mapping[str, Any], variables: tuple[str, ...] = FOLDER_VARIABLES
) -> Path | None:
    """Return the folder of the machine in which pods of a job write event files, or the path that
    another one of their variables names; None if the job has none, or if it is no path of a node.
    """
    for spec in _pod_specs(manifest):
        volumes = {
            volume.get("name"): (volume.get("hostPath") or {}).get("path")
            for volume in spec.get("volumes") or ()
        }
        for container in spec.get("containers") or ():
            mounts = [mount for mount in container.get("volumeMounts") or () if mount.get("name")]
            wanted = [
                str(variable.get("value"))
                for variable in container.get("env") or ()
                if variable.get("name") in variables and variable.get("value")
            ]
            if variables is FOLDER_VARIABLES:
                wanted += [mount["mountPath"] for mount in mounts if mount["name"] == LOGS_VOLUME]
            for folder in wanted:
                path = PurePosixPath(container.get("workingDir") or "/", folder)
                for mount in sorted(mounts, key=lambda mount: -len(mount["mountPath"])):
                    host = volumes.get(mount["name"])
                    if host and path.is_relative_to(mount["mountPath"]) and ".." not in path.parts:
                        inside = path.relative_to(mount["mountPath"])
                        return Path(host, mount.get("subPath") or "", inside)
    return None


def _pod_specs(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        if isinstance(value.get("containers"), list):
            yield value
        for part in value.values():
            yield from _pod_specs(part)
    elif isinstance(value, list):
        for part in value:
            yield from _pod_specs(part)


class EventFolder:
    """The event files below a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}

    def read(self) -> list[Scalar]:
        """Return the scalars that were written since the last reading, in order of time.

        Names of files in folders below the first are prefixed with the folder, as in TensorBoard.
        """
        scalars: list[Scalar] = []
        for path in self._files():
            offset = self._offsets.get(path, 0)
            try:
                with path.open("rb") as file:
                    file.seek(offset)
                    data = file.read(MAX_READ)
            except OSError:
                continue
            run = path.parent.relative_to(self._folder).as_posix()
            prefix = "" if run == "." else f"{run}/"
            end = 0
            for end, event in _records(data):  # noqa: B007 - the end of the last one is used
                scalars += _scalars(event, prefix)
            self._offsets[path] = offset + end
        return sorted(scalars)

    def _files(self) -> list[Path]:
        patterns = (
            "/".join(["*"] * depth + ["events.out.tfevents.*"]) for depth in range(_MAX_DEPTH)
        )
        try:
            paths = [path for pattern in patterns for path in self._folder.glob(pattern)]
        except OSError:
            return []
        return sorted(path for path in paths if path.is_file())[-MAX_FILES:]


def _records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield complete records with the position after each."""
    at = 0
    while at + _HEADER <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        end = at + _HEADER + length + _FOOTER
        if end > len(data):
            if length > MAX_READ:  # it can never be read: nothing behind it is found
                yield len(data), b""
            return
        yield end, data[at + _HEADER : end - _FOOTER]
        at = end


def _scalars(event: bytes, prefix: str) -> Iterator[Scalar]:
    try:
        fields = list(_fields(event))
        wall_s = next((struct.unpack("<d", value)[0] for key, value in fields if key == 1), 0.0)
        step = next((value for key, value in fields if key == 2), 0)
        for key, summary in fields:
            for number, value in _fields(summary) if key == 5 else ():
                parts = dict(_fields(value)) if number == 1 else {}
                amount = _amount(parts)
                if amount is not None and math.isfinite(amount) and math.isfinite(wall_s):
                    name = prefix + parts.get(1, b"").decode(errors="replace")
                    yield Scalar(round(wall_s * 1000), int(step), name[:128], amount)
    except (ValueError, IndexError, TypeError, AttributeError, struct.error, OverflowError):
        return  # it is no message of this kind


def _amount(value: Mapping[int, Any]) -> float | None:
    if 2 in value:
        return float(struct.unpack("<f", value[2])[0])
    if 8 not in value:
        return None
    tensor = dict(_fields(value[8]))
    form = {_FLOAT: "<f", _DOUBLE: "<d"}.get(tensor.get(1, 0))
    content = tensor.get(4) or tensor.get(5 if form == "<f" else 6) or b""
    if form is None or len(content) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, content)[0])


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field: an integer, or the bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if kind == _BYTES:
            size, at = _varint(message, at)
        if size is None or at + size > len(message):
            raise ValueError("no protobuf message")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("no varint")
