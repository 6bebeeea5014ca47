"""Images without pulling: a map from image patterns to environments of this machine.

The map is a YAML or JSON file, or a dict; the first matching pattern counts:

    "registry.example.org/train:*":
      env: /opt/venvs/train          # a virtual environment: its bin folder is first on PATH
      variables: {NCCL_DEBUG: WARN}
      warm: [torch]                  # modules that are imported before a container starts
    "busybox*":
      root: /opt/images/busybox      # a folder that becomes the container's root
      path: /opt/tools/bin           # more folders for PATH
      command: [sh]                  # the command if the container specifies none
      user: 65532                    # the user and group if the pod specifies none
      group: 65532

An image without a match runs in the Python environment of gangline itself.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from gangline.local.kubelet.runtime.interface import WarmEnvironment

MAX_ID = (1 << 31) - 1
_INHERITED = ("LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")


class ImageMapError(Exception):
    """The image map cannot be used; the message says where and why."""


class ImageEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    env: str = ""
    root: str = ""
    path: str = ""
    variables: dict[str, str] = {}
    command: list[str] = []
    workdir: str = ""
    warm: list[str] = []
    user: Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)] | None = None
    group: Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)] | None = None


@dataclass(frozen=True, slots=True)
class ResolvedImage:
    variables: Mapping[str, str]
    root: Path | None = None
    command: tuple[str, ...] = ()
    workdir: str = "/"
    matched: bool = False
    description: str = ""
    """The place where it really runs, for messages."""

    warm: WarmEnvironment | None = None
    user: int | None = None
    """The user of a container whose pod names none; None: that of the kubelet."""
    group: int | None = None


@dataclass(frozen=True, slots=True)
class ImageMap:
    """Patterns and their entries, in order."""

    entries: Sequence[tuple[str, ImageEntry]] = ()
    environment: Path = Path(sys.prefix)
    """The Python environment for images without a match."""

    system_path: str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    """The folders searched for commands after the environment's own."""

    def resolve(self, image: str) -> ResolvedImage:
        for pattern, entry in self.entries:
            if fnmatchcase(image, pattern):
                return self._mapped(entry)
        return ResolvedImage(
            variables=self._variables(ImageEntry(env=str(self.environment))),
            description=f"the current environment, {self.environment}",
        )

    def warm_environments(self) -> list[WarmEnvironment]:
        warm_environments = (self._mapped(entry).warm for _, entry in self.entries)
        return [environment for environment in warm_environments if environment is not None]

    def _mapped(self, entry: ImageEntry) -> ResolvedImage:
        variables = self._variables(entry)
        return ResolvedImage(
            variables=variables,
            root=Path(entry.root) if entry.root else None,
            command=tuple(entry.command),
            workdir=entry.workdir or "/",
            matched=True,
            description=entry.root or entry.env or "the machine's own files",
            warm=WarmEnvironment(tuple(entry.warm), variables) if entry.warm else None,
            user=entry.user,
            group=entry.group,
        )

    def _variables(self, entry: ImageEntry) -> dict[str, str]:
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        folders = [f"{entry.env}/bin"] if entry.env else []
        folders += [part for part in (entry.path, self.system_path) if part]
        user_folder = "/root" if os.geteuid() == 0 or entry.root else os.path.expanduser("~")
        variables = {"PATH": ":".join(folders), "HOME": user_folder}
        if entry.env and Path(entry.env, "pyvenv.cfg").exists():
            variables["VIRTUAL_ENV"] = entry.env
        return {**({} if entry.root else inherited), **variables, **entry.variables}


def load_image_map(source: Path | Mapping[str, Any] | None) -> ImageMap:
    """Read an image map. Raises ImageMapError: it cannot be read, or names a folder that does not
    exist.
    """
    if source is None:
        return ImageMap()
    written = _read(source) if isinstance(source, Path) else source
    where = f"image map {source}" if isinstance(source, Path) else "image map"
    if not isinstance(written, Mapping):
        raise ImageMapError(f"{where}: must map image patterns to settings")
    entries = []
    for pattern, settings in written.items():
        try:
            entry = msgspec.convert(settings, ImageEntry)
        except msgspec.ValidationError as error:
            raise ImageMapError(f"{where}: {pattern!r}: {error}") from error
        for folder in (entry.env, entry.root):
            if folder and not Path(folder).is_dir():
                raise ImageMapError(f"{where}: {pattern!r}: there is no folder {folder}")
        if entry.warm and (entry.root or not entry.env):
            raise ImageMapError(
                f"{where}: {pattern!r}: warm requires env, whose Python imports the modules, "
                "and no root"
            )
        if wrong := [
            name for name in entry.warm if not all(map(str.isidentifier, name.split(".")))
        ]:
            raise ImageMapError(
                f"{where}: {pattern!r}: warm must contain names of modules such as torch, "
                f"not {wrong[0]!r}"
            )
        entries.append((str(pattern), entry))
    return ImageMap(entries)


def _read(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text()) or {}
    except OSError as error:
        raise ImageMapError(f"image map {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ImageMapError(f"image map {path} is not valid YAML: {error}") from error
