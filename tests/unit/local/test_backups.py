"""Backup and restore of a stopped cluster: what is refused, what is replaced, and revisions."""

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gangline.local.apiserver.storage.durable_files import Durability
from gangline.local.apiserver.storage.encryption import (
    GENERATED_FILE,
    EncryptionKeys,
    generate_key_line,
    load_keys,
    parse_keys,
)
from gangline.local.apiserver.storage.sqlite import DatabaseError, LogRow, StateDatabase
from gangline.local.backups import REVISION_BUMP, create_backup, restore_backup
from gangline.local.directory import (
    RESTORING,
    ClusterAlreadyRunning,
    ClusterDirectory,
    ClusterError,
    ClusterLock,
    ClusterNotRunning,
)

SECRET = b'{"data":{"password":"the-password"}}'


def open_state(cluster: ClusterDirectory) -> StateDatabase:
    keys = load_keys(cluster.folder, None, new_cluster=False)
    return StateDatabase(cluster.folder / "state.db", durability=Durability.PROCESS, keys=keys)


def write_objects(cluster: ClusterDirectory, *rows: LogRow) -> None:
    database = open_state(cluster)
    database.commit(rows, [], 0)
    database.close()


def objects(cluster: ClusterDirectory) -> dict[str, bytes]:
    database = open_state(cluster)
    try:
        return {row.key: row.body for row in database.rows()}
    finally:
        database.close()


def horizon(cluster: ClusterDirectory) -> int:
    database = open_state(cluster)
    try:
        return database.horizon()
    finally:
        database.close()


@pytest.fixture
def cluster(tmp_path: Path) -> ClusterDirectory:
    """A stopped cluster with history: one object changed, one deleted, and a Secret."""
    cluster = ClusterDirectory(tmp_path / "home")
    cluster.prepare()
    pki = cluster.folder / "pki"
    pki.mkdir(mode=0o700)
    (pki / "ca.key").write_text("authority")
    (pki / "admin.token").write_text("token")
    key = cluster.folder / GENERATED_FILE
    key.write_bytes(generate_key_line())
    key.chmod(0o600)
    write_objects(
        cluster,
        LogRow(3, "configmaps.", "default/a", "ADDED", b'{"n":1}'),
        LogRow(4, "configmaps.", "default/b", "ADDED", b'{"n":1}'),
        LogRow(5, "configmaps.", "default/a", "MODIFIED", b'{"n":2}'),
        LogRow(6, "configmaps.", "default/b", "DELETED", b'{"n":1}'),
        LogRow(7, "secrets.", "default/s", "ADDED", SECRET),
        LogRow(8, "configmaps.", "default/c", "ADDED", b'{"n":1}'),
        LogRow(9, "configmaps.", "default/c", "DELETED", b'{"n":1}'),
    )
    return cluster


@pytest.fixture
def backup(cluster: ClusterDirectory, tmp_path: Path) -> Path:
    create_backup(cluster, tmp_path / "backup")
    return tmp_path / "backup"


def test_backup_has_the_present_objects_and_is_private(
    cluster: ClusterDirectory, tmp_path: Path
) -> None:
    file = tmp_path / "backup"
    backup = create_backup(cluster, file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert (backup.manifest.revision, backup.manifest.objects) == (9, 2)
    assert backup.has_key
    other = ClusterDirectory(tmp_path / "home", "other")
    restore_backup(file, other)
    assert objects(other) == {"default/a": b'{"n":2}', "default/s": SECRET}
    assert (other.folder / "pki" / "ca.key").read_text() == "authority"
    assert list(tmp_path.glob(".*")) == []


def test_restored_state_continues_above_every_known_revision(
    cluster: ClusterDirectory, backup: Path
) -> None:
    first = restore_backup(backup, cluster, force=True)
    assert first.revision == horizon(cluster) == 9 + REVISION_BUMP
    # The same backup again: clients have seen revisions of the first restore.
    write_objects(cluster, LogRow(first.revision + 5, "configmaps.", "default/d", "ADDED", b"{}"))
    second = restore_backup(backup, cluster, force=True)
    assert second.revision == first.revision + 5 + REVISION_BUMP
    # Even if the state backup that had them is lost.
    (cluster.folder / "state.db").write_bytes(b"damaged")
    third = restore_backup(backup, cluster, force=True)
    assert third.revision == second.revision + REVISION_BUMP
    assert "default/d" not in objects(cluster)


def test_state_is_replaced_only_with_force_and_moved_aside(
    cluster: ClusterDirectory, tmp_path: Path, backup: Path
) -> None:
    write_objects(cluster, LogRow(10, "configmaps.", "default/later", "ADDED", b"{}"))
    with pytest.raises(ClusterError, match=r"has a state in .*--force"):
        restore_backup(backup, cluster)
    assert "default/later" in objects(cluster)
    restored = restore_backup(backup, cluster, force=True)
    assert "default/later" not in objects(cluster)
    assert restored.replaced is not None
    assert {path.name for path in restored.replaced.iterdir()} == {
        "state.db", "pki", GENERATED_FILE,
    }  # fmt: skip
    former = StateDatabase(restored.replaced / "state.db")
    assert former.copy_current(tmp_path / "copy.db") == 10
    former.close()


def test_running_cluster_is_not_replaced(cluster: ClusterDirectory, backup: Path) -> None:
    with ClusterLock(cluster), pytest.raises(ClusterAlreadyRunning):
        restore_backup(backup, cluster, force=True)


def test_backup_replaces_no_file(cluster: ClusterDirectory, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    file.write_text("mine")
    with pytest.raises(ClusterError, match="exists"):
        create_backup(cluster, file)
    assert file.read_text() == "mine"


def test_backup_of_a_missing_cluster_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterNotRunning, match="there is no cluster default"):
        create_backup(ClusterDirectory(tmp_path), tmp_path / "backup")


def test_backup_of_a_damaged_cluster_is_refused(cluster: ClusterDirectory, tmp_path: Path) -> None:
    os.truncate(cluster.folder / "state.db", 5000)
    with pytest.raises(ClusterError, match="is damaged"):
        create_backup(cluster, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


def test_message_about_damage_names_the_last_backup(
    cluster: ClusterDirectory, backup: Path
) -> None:
    (cluster.folder / "state.db").write_bytes(b"")
    with pytest.raises(DatabaseError, match=rf"gangline restore FILE --force' .*{backup} of 20"):
        open_state(cluster)


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def flip_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def repack(file: Path, change: Callable[[tarfile.TarInfo, bytes], tuple[str, bytes]]) -> None:
    packed = io.BytesIO()
    with tarfile.open(file) as old, tarfile.open(fileobj=packed, mode="w:gz") as new:
        for entry in old:
            content = old.extractfile(entry)
            assert content is not None
            name, data = change(entry, content.read())
            if name:
                fresh = tarfile.TarInfo(name)
                fresh.size = len(data)
                new.addfile(fresh, io.BytesIO(data))
    file.write_bytes(packed.getvalue())


def change_state(file: Path) -> None:
    repack(file, lambda entry, data: (entry.name, data.replace(b'{"n":2}', b'{"n":3}')))


def rename_outside(file: Path) -> None:
    outside = "../../outside"
    repack(file, lambda entry, data: (outside if entry.name == "pki/ca.key" else entry.name, data))


def leave_out_state(file: Path) -> None:
    repack(file, lambda entry, data: ("" if entry.name == "state.db" else entry.name, data))


def newer_format(file: Path) -> None:
    def change(entry: tarfile.TarInfo, data: bytes) -> tuple[str, bytes]:
        if entry.name == "manifest.json":
            data = msgspec.json.encode(msgspec.json.decode(data) | {"format": 99})
        return entry.name, data

    repack(file, change)


def other_archive(file: Path) -> None:
    with tarfile.open(file, "w:gz") as archive:
        archive.add(__file__, "notes.py")


def other_file(file: Path) -> None:
    file.write_bytes(gzip.compress(b"notes"))


def plain_text(file: Path) -> None:
    file.write_text("notes")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, "damaged or incomplete"),
        (flip_bit, "damaged or incomplete"),
        (change_state, "checksum of state.db is wrong"),
        (rename_outside, r"unexpected entry '\.\./\.\./outside'"),
        (leave_out_state, "state.db is missing"),
        (newer_format, "has format 99, which a newer version"),
        (other_archive, "is not a backup"),
        (other_file, "damaged or incomplete"),
        (plain_text, "damaged or incomplete"),
    ],
)
def test_unusable_archive_is_refused_and_changes_nothing(
    cluster: ClusterDirectory, backup: Path, damage: Callable[[Path], None], message: str
) -> None:
    before = sorted(cluster.folder.rglob("*"))
    state = (cluster.folder / "state.db").read_bytes()
    damage(backup)
    with pytest.raises(ClusterError, match=message):
        restore_backup(backup, cluster, force=True)
    assert sorted(path for path in cluster.folder.rglob("*") if path.name != "lock") == [
        path for path in before if path.name != "lock"
    ]
    assert (cluster.folder / "state.db").read_bytes() == state


def test_backup_without_key_needs_the_key_file_at_the_restore(
    cluster: ClusterDirectory, tmp_path: Path
) -> None:
    file = tmp_path / "backup"
    assert not create_backup(cluster, file, with_key=False).has_key
    with tarfile.open(file) as archive:
        assert GENERATED_FILE not in archive.getnames()
    other = ClusterDirectory(tmp_path / "elsewhere")
    with pytest.raises(ClusterError, match=r"encrypted with key 'key-.*--encryption-key FILE"):
        restore_backup(file, other)
    assert not (other.folder / "state.db").exists()
    restored = restore_backup(file, other, key_file=cluster.folder / GENERATED_FILE)
    assert restored.needs_key
    keys = parse_keys((cluster.folder / GENERATED_FILE).read_text(), "key")
    database = StateDatabase(other.folder / "state.db", keys=EncryptionKeys(keys, "key"))
    assert {row.key: row.body for row in database.rows()}["default/s"] == SECRET
    database.close()


def test_backup_without_key_keeps_the_key_of_its_own_cluster(
    cluster: ClusterDirectory, tmp_path: Path
) -> None:
    file = tmp_path / "backup"
    create_backup(cluster, file, with_key=False)
    assert not restore_backup(file, cluster, force=True).needs_key
    assert objects(cluster)["default/s"] == SECRET


def test_interrupted_restore_keeps_the_cluster_from_starting_until_it_is_repeated(
    cluster: ClusterDirectory, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def die(self: Path, target: Path) -> Path:
        if self.parent.name == RESTORING and self.name == "state.db":
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", die)
        with pytest.raises(KeyboardInterrupt):
            restore_backup(backup, cluster, force=True)
    with pytest.raises(ClusterError, match=r"was interrupted: repeat it with 'gangline restore"):
        cluster.refuse_interrupted_restore()
    restore_backup(backup, cluster, force=True)
    cluster.refuse_interrupted_restore()
    assert objects(cluster)["default/s"] == SECRET
