"""What each source of an initializer implements."""

from pathlib import Path
from typing import Protocol

import msgspec

from gangline.initializer.files import SourceFile


class Listing(msgspec.Struct, frozen=True):
    """The files of a source."""

    files: list[SourceFile]
    revision: str = ""
    """The commit of a repository; empty if the source has none."""


class Source(Protocol):
    """Lists and fetches files; each call raises ``InitializerError`` or ``TransientError``."""

    def list_files(self) -> Listing:
        """List the files that are fetched."""

    def fetch(self, file: SourceFile, listing: Listing, output: Path) -> None:
        """Write a file below the output folder; what an earlier attempt fetched is used."""
