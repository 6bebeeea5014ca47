"""``--config-file``: local files that pods mount from a ConfigMap for each target folder."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from gangline.cli.jobs.flags import JobFlags, Manifest, Mount
from gangline.cli.jobs.owned import owned_object

DEFAULT_FOLDER = "/etc/gangline-config"
_MAX_BYTES = 1 << 20
_NAME_DIGITS = 15


def add_config_files(flags: JobFlags, items: Sequence[str]) -> tuple[JobFlags, list[Manifest]]:
    """Return the job with the files mounted, and the ConfigMaps that contain them."""
    folders: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for item in items:
        local, _, inside = item.partition(":")
        target = inside or f"{DEFAULT_FOLDER}/{Path(local).name}"
        folder, _, name = target.rpartition("/")
        if not folder.startswith("/") or not name:
            raise _wrong(item, "write FILE or FILE:/FOLDER/NAME")
        folders[folder][name] = _read_text(item, local)
    maps: list[Manifest] = []
    mounts: list[Mount] = []
    for folder, files in folders.items():
        digest = hashlib.md5(folder.encode(), usedforsecurity=False).hexdigest()[:_NAME_DIGITS]
        name = f"{flags.name}-{digest}"
        head = {"apiVersion": "v1", "kind": "ConfigMap"}
        maps.append(owned_object(flags.name, head, name) | {"data": files})
        volume = {"name": f"config-{digest}", "configMap": {"name": name}}
        mounts.append((volume, {"name": f"config-{digest}", "mountPath": folder}))
    pod = replace(flags.pod, mounts=(*flags.pod.mounts, *mounts))
    return replace(flags, pod=pod), maps


def _read_text(item: str, local: str) -> str:
    try:
        path = Path(local)
        if path.stat().st_size > _MAX_BYTES:
            raise _wrong(item, "the file is larger than the 1 MiB that a ConfigMap holds")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise _wrong(item, "the file is not text (UTF-8)") from None
    except OSError as error:
        raise _wrong(item, f"{local}: {error.strerror}") from error


def _wrong(item: str, remedy: str) -> click.BadParameter:
    return click.BadParameter(f"{item!r}: {remedy}", param_hint="--config-file")
