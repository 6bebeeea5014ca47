"""Files that are not complete yet; a further attempt continues them."""

import hashlib
from pathlib import Path

from gangline.initializer.files import SourceFile, own_folder

_FOLDER = "partial"


def partial_folder(output: Path) -> Path:
    return own_folder(output) / _FOLDER


def partial_file(output: Path, file: SourceFile) -> Path:
    """Return where a file is written before it is complete; another version has another place."""
    key = f"{file.path}\0{file.version}\0{file.size}"
    folder = partial_folder(output)
    folder.mkdir(parents=True, exist_ok=True)
    (output / file.path).parent.mkdir(parents=True, exist_ok=True)
    return folder / hashlib.sha256(key.encode()).hexdigest()
