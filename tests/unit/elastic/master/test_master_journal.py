"""Written records are read again, whatever the end of the file looks like."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gangline.elastic.master.journal import FileJournal, JournalError


async def written(path: Path, records: list[bytes], snapshot: bytes | None = None) -> None:
    journal = FileJournal(path)
    journal.read()
    if snapshot is not None:
        await journal.compact(snapshot)
    for record in records:
        journal.append(record)
    journal.write()
    await journal.close()


async def test_a_new_journal_is_empty(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / "deep" / "journal")
    assert journal.read() == (b"", [])
    await journal.close()


async def test_a_snapshot_replaces_all_records_before_it(tmp_path: Path) -> None:
    await written(tmp_path / "j", [b"old"])
    await written(tmp_path / "j", [b"new"], snapshot=b"all")
    journal = FileJournal(tmp_path / "j")
    assert journal.read() == (b"all", [b"new"])
    await journal.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6), st.data())
async def test_a_journal_cut_anywhere_gives_its_complete_records(
    tmp_path: Path, records: list[bytes], data: st.DataObject
) -> None:
    path = tmp_path / "j"
    path.unlink(missing_ok=True)
    await written(path, records)
    complete = path.read_bytes()
    path.write_bytes(complete[: data.draw(st.integers(0, len(complete)))])
    journal = FileJournal(path)
    _, read = journal.read()
    assert read == records[: len(read)]
    journal.append(b"later")
    await journal.close()
    again = FileJournal(path)
    assert again.read()[1] == [*read, b"later"]
    await again.close()


async def test_a_damaged_record_ends_the_reading(tmp_path: Path) -> None:
    await written(tmp_path / "j", [b"one", b"two", b"three"])
    content = bytearray((tmp_path / "j").read_bytes())
    content[content.index(b"two")] ^= 1
    (tmp_path / "j").write_bytes(bytes(content))
    journal = FileJournal(tmp_path / "j")
    assert journal.read()[1] == [b"one"]
    await journal.close()


async def test_two_masters_never_share_a_journal(tmp_path: Path) -> None:
    first = FileJournal(tmp_path / "j")
    first.read()
    with pytest.raises(JournalError, match="another master"):
        FileJournal(tmp_path / "j").read()
    await first.compact(b"x")  # the new file is locked too
    with pytest.raises(JournalError, match="another master"):
        FileJournal(tmp_path / "j").read()
    await first.close()


async def test_another_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "j").write_text("my thesis, the only copy")
    with pytest.raises(JournalError, match="no journal"):
        FileJournal(tmp_path / "j").read()
    assert (tmp_path / "j").read_text() == "my thesis, the only copy"


async def test_a_journal_requests_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangline.elastic.master.journal.MIN_COMPACT_BYTES", 100)
    journal = FileJournal(tmp_path / "j")
    journal.read()
    assert not journal.needs_compaction
    journal.append(b"x" * 200)
    journal.write()
    assert journal.needs_compaction
    await journal.compact(b"small")
    assert not journal.needs_compaction
    await journal.close()
