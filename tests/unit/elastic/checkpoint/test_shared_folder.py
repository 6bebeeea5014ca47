"""The ranks prove that they see one folder."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gangline.elastic.checkpoint import shared_folder
from gangline.elastic.checkpoint.errors import UnsharedFolderError
from gangline.elastic.checkpoint.shared_folder import TOKEN, SharedFolderProof
from gangline.elastic.checkpoint.snapshot import directory
from gangline.elastic.checkpoint.snapshot.directory import SaverSettings
from gangline.elastic.checkpoint.storage.target import LocalTarget
from unit.elastic.checkpoint.restore.test_checkpoint_reshard import Seat, Table

HOSTS = ["a", "b", "b"]


@pytest.fixture
def prove(tmp_path: Path) -> Callable[..., list[str]]:
    """Prove on three ranks, on folders of their own; return what each of them raises."""
    seats = [Seat(rank, table) for table in [Table(3)] for rank in range(3)]
    proofs: list[SharedFolderProof] = []

    def run(*folders: str) -> list[str]:
        if not proofs:
            for seat, folder in zip(seats, folders, strict=True):
                memory = tmp_path / f"memory-{seat.rank}"
                memory.mkdir(mode=0o700)
                settings = SaverSettings(str(tmp_path / folder), "job", hosts=HOSTS)
                proofs.append(SharedFolderProof(seat, memory, settings))

        def one(proof: SharedFolderProof) -> str:
            try:
                proof.prove()
            except UnsharedFolderError as error:
                return str(error)
            return ""

        with ThreadPoolExecutor(3) as pool:
            return list(pool.map(one, proofs))

    return run


def test_a_shared_folder_is_proved_once_and_nothing_stays_in_it(
    prove: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prove("one", "one", "one") == [""] * 3
    assert list((tmp_path / "one").iterdir()) == []
    monkeypatch.delattr(Seat, "all_gather")
    assert prove() == [""] * 3


def test_all_ranks_name_the_nodes_that_see_another_folder_and_their_savers_write_nothing(
    prove: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_folder, "READ_TIMEOUT_S", 0.0)
    texts = prove("one", "other", "one")
    assert len({text.partition(" is not ")[2] for text in texts}) == 1
    assert "rank 1 on b does not see what rank 0 on a has written" in texts[0]
    for rank in range(3):
        settings = directory.read_settings(tmp_path / f"memory-{rank}")
        assert settings is not None
        assert settings.refusal == texts[rank]
    assert prove() == texts, "each save to storage is refused"


def test_a_token_that_appears_late_is_waited_for(
    prove: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As through a cache of NFS: first no file, then an old one, then the token."""
    views = {"read": itertools.count()}
    plain = LocalTarget.read

    def read(target: LocalTarget, path: str) -> bytes:
        match next(views["read"]):
            case 0 | 1 | 2:
                raise FileNotFoundError(path)
            case 3 | 4 | 5:
                return b"an older token"
        return plain(target, path)

    monkeypatch.setattr(LocalTarget, "read", read)
    monkeypatch.setattr(shared_folder, "_POLL_S", 0.001)
    assert prove("one", "one", "one") == [""] * 3


@pytest.mark.parametrize("method", ["put", "read"])
def test_a_failing_storage_proves_nothing_and_is_tried_at_the_second_and_fourth_save(
    method: str, prove: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_folder, "READ_TIMEOUT_S", 0.0)
    tries = []

    def fail(target: LocalTarget, path: str, *_: object) -> None:
        tries.append(path)
        raise OSError("the server is down")

    with monkeypatch.context() as broken:
        broken.setattr(LocalTarget, method, fail)
        for save in range(1, 8):
            count = len(tries)
            assert prove("one", "other", "one") == [""] * 3
            assert (len(tries) > count) == (save in {1, 2, 4})
    assert set(tries) == {TOKEN}
    assert "rank 1 on b" in prove()[0], "the eighth"
