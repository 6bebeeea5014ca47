"""Proof that all ranks see one folder: rank 0 writes a token, and every rank reads it.

Each node writes its own parts of a step. If the folder is another disk on each node, no step is
ever complete, and training would go on without a checkpoint. So the ranks prove it at the first
save to storage. A storage that fails proves nothing: then the proof is tried again at the second,
fourth, eighth … save to storage, so that a failing storage seldom delays training.
"""

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from gangline.display import error_text
from gangline.elastic.checkpoint.errors import StorageError, UnsharedFolderError
from gangline.elastic.checkpoint.ranks import SaveGroup
from gangline.elastic.checkpoint.snapshot import directory
from gangline.elastic.checkpoint.snapshot.directory import SaverSettings
from gangline.elastic.checkpoint.storage.commit import ranks_text
from gangline.elastic.checkpoint.storage.target import open_target

TOKEN = ".shared"
READ_TIMEOUT_S = 10.0
"""Time for a token to appear: clients of NFS cache the attributes of folders for some seconds."""
_POLL_S = 0.1
_ABSENT = "absent"


class SharedFolderProof:
    """Proves once that the ranks share the folder."""

    def __init__(self, ranks: SaveGroup, job_folder: Path, settings: SaverSettings) -> None:
        self._ranks, self._job_folder, self._settings = ranks, job_folder, settings
        self._saves = 0
        self._is_proved = ranks.world == 1
        self._fault = ""

    def prove(self) -> None:
        """Compare what the ranks see, unless that is done; all ranks call it together.

        Raises UnsharedFolderError: some ranks do not see what rank 0 has written.
        """
        if not self._is_proved:
            self._saves += 1
            if self._saves & (self._saves - 1) == 0:
                self._is_proved = self._try()
        if self._fault:
            raise UnsharedFolderError(self._fault)

    def _try(self) -> bool:
        """Return whether the ranks know now if they share the folder."""
        token = secrets.token_hex(16)
        problem = _in_time(lambda: self._write(token)) if self._ranks.rank == 0 else ""
        token, problem = self._ranks.broadcast((token, problem))
        if problem:
            return False  # the saver reports it
        problem = _in_time(lambda: self._find(token))
        problems = self._ranks.all_gather(problem)
        if self._ranks.rank == 0:
            _in_time(self._remove)
        blind = [rank for rank, text in enumerate(problems) if text == _ABSENT]
        if blind:
            self._fault = unshared_message(self._settings.target, self._settings.hosts, blind)
            # The saver must not write what was saved to memory before, when this process ends.
            directory.write_settings(
                self._job_folder, msgspec.structs.replace(self._settings, refusal=self._fault)
            )
        return bool(blind) or not any(problems)

    def _write(self, token: str) -> None:
        open_target(self._settings.target, self._settings.options).put(TOKEN, token.encode())

    def _find(self, token: str) -> None:
        target = open_target(self._settings.target, self._settings.options)
        deadline = time.monotonic() + READ_TIMEOUT_S
        while True:
            with contextlib.suppress(FileNotFoundError):
                if target.read(TOKEN) == token.encode():
                    return
            if time.monotonic() > deadline:
                raise FileNotFoundError
            time.sleep(_POLL_S)

    def _remove(self) -> None:
        open_target(self._settings.target, self._settings.options).remove(TOKEN)


def _in_time(action: Callable[[], None]) -> str:
    """Run an action on storage, which may hang; return what is wrong, or an empty string."""
    problems = ["it does not answer"]

    def run() -> None:
        try:
            action()
            problems[0] = ""
        except FileNotFoundError:
            problems[0] = _ABSENT
        except (OSError, StorageError) as error:
            problems[0] = error_text(error)

    thread = threading.Thread(target=run, name="gangline-checkpoint-proof", daemon=True)
    thread.start()
    thread.join(READ_TIMEOUT_S + 5.0)
    return problems[0]


def unshared_message(folder: str, hosts: Sequence[str], blind: Sequence[int]) -> str:
    """Explain that some ranks do not see what rank 0 has written."""
    return (
        f"{folder} is not the same folder on all nodes: {ranks_text(blind, hosts)} "
        f"{'do' if len(blind) > 1 else 'does'} not see what {ranks_text([0], hosts)} has written "
        "there. Each node writes a part of every step, so no step would be complete: mount storage "
        "that all nodes share at this path, or use the URL of an object store"
    )
