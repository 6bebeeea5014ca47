"""Which files of an interrupted fetch are complete, with the version that the source had."""

from pathlib import Path

import msgspec

from gangline.initializer.files import SourceFile, own_folder

_NAME = "fetched.jsonl"


class FetchJournal:
    """The complete files of a fetch, one line each."""

    def __init__(self, output: Path) -> None:
        self._path = own_folder(output) / _NAME
        self._known: set[SourceFile] = set()
        try:
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                self._known.add(msgspec.json.decode(line, type=SourceFile))
            except msgspec.MsgspecError:
                continue  # the last line of a process that was killed

    def has(self, file: SourceFile) -> bool:
        return file in self._known

    def add(self, file: SourceFile) -> None:
        """Record a file that is complete on the disk."""
        with self._path.open("ab") as journal:
            journal.write(msgspec.json.encode(file) + b"\n")

    def remove(self) -> None:
        """Remove the journal: the mark takes its place."""
        self._path.unlink(missing_ok=True)
