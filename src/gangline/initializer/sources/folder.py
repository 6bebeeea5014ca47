"""``file://`` and ``pvc://``: a file or folder that the container sees."""

import os
import shutil
from pathlib import Path

from gangline.api.trainer.storage_uri import PVC
from gangline.initializer.errors import InitializerError
from gangline.initializer.files import SourceFile, check_path, partial_file, select_paths
from gangline.initializer.settings import InitializerSettings
from gangline.initializer.source import Listing


class FolderSource:
    """A folder, or one file."""

    def __init__(self, settings: InitializerSettings) -> None:
        self._settings = settings
        source = settings.source
        is_claim = source.scheme == PVC
        self._root = settings.claim_path / source.path if is_claim else Path(source.path)

    def list_files(self) -> Listing:
        field, uri = self._settings.uri_field, self._settings.uri
        try:
            if self._root.is_file():
                paths = [self._root.name]
                self._root = self._root.parent
            else:
                paths = _paths_below(self._root)
            chosen = select_paths(paths, self._settings.ignored)
            return Listing([self._describe(check_path(path, field)) for path in chosen])
        except (FileNotFoundError, NotADirectoryError) as error:
            problem = f"{uri!r} does not exist: there is no {error.filename}"
            remedy = "mount its volume in the container of the initializer"
            raise InitializerError(field, problem, remedy) from error
        except PermissionError as error:
            problem = f"{uri!r} cannot be read: {error.filename}: {error.strerror}"
            raise InitializerError(field, problem) from error

    def fetch(self, file: SourceFile, listing: Listing, output: Path) -> None:
        target = output / file.path
        partial = partial_file(output, file)
        shutil.copyfile(self._root / file.path, partial)
        os.replace(partial, target)

    def _describe(self, path: str) -> SourceFile:
        status = (self._root / path).stat()
        return SourceFile(path, status.st_size, version=str(status.st_mtime_ns))


def _paths_below(root: Path) -> list[str]:
    """List the files of a folder; links to folders are followed, each folder once."""
    paths: list[str] = []
    seen: set[tuple[int, int]] = set()

    def fail(error: OSError) -> None:
        raise error

    for folder, names, files in os.walk(root, onerror=fail, followlinks=True):
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:
            names.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        relative = os.path.relpath(folder, root)
        prefix = "" if relative == "." else f"{relative}/"
        paths += [f"{prefix}{name}" for name in files]
    return sorted(paths)
