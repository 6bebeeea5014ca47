"""Container logs: rotation, partial lines, binary output, and late readers."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.local.kubelet.logs import LogWriter, PodLogOptions, read_log, rotated_files


async def text(path: Path, options: PodLogOptions | None = None) -> bytes:
    return b"".join([chunk async for chunk in read_log(path, options or PodLogOptions())])


@given(pieces=st.lists(st.binary(max_size=40000), max_size=8))
def test_what_was_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("log") / "0.log"
    writer = LogWriter(path)
    for piece in pieces:
        writer.write("stdout", piece)
    writer.close()
    assert asyncio.run(text(path)) == b"".join(pieces)


async def test_each_line_has_time_stream_and_tag(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "0.log")
    writer.write("stdout", b"one\ntw")
    writer.write("stderr", b"err\n")
    writer.write("stdout", b"o\nrest")
    writer.close()
    entries = [line.split(b" ", 3) for line in writer.path.read_bytes().splitlines()]
    assert [entry[1:] for entry in entries] == [
        [b"stdout", b"F", b"one"],
        [b"stderr", b"F", b"err"],
        [b"stdout", b"F", b"two"],
        [b"stdout", b"P", b"rest"],
    ]
    assert datetime.fromisoformat(entries[0][0][:26].decode() + "+00:00")


@pytest.mark.parametrize(
    ("tail", "expected"), [(0, b""), (1, b"9\n"), (3, b"7\n8\n9\n"), (99, None)]
)
async def test_the_last_lines_are_found_across_files(
    tmp_path: Path, tail: int, expected: bytes | None
) -> None:
    writer = LogWriter(tmp_path / "0.log", max_bytes=100, max_files=50)
    everything = b"".join(b"%d\n" % number for number in range(10))
    for line in everything.splitlines(keepends=True):
        writer.write("stdout", line)
    assert len(rotated_files(writer.path)) > 2
    assert await text(writer.path, PodLogOptions(tail_lines=tail)) == (
        everything if expected is None else expected
    )
    writer.close()


async def test_old_files_are_removed(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "0.log", max_bytes=200, max_files=3)
    for number in range(100):
        writer.write("stdout", b"%d\n" % number)
    writer.close()
    assert len(rotated_files(writer.path)) == 2
    assert (await text(writer.path)).endswith(b"98\n99\n")


async def test_a_follower_sees_every_line_through_rotations(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "0.log", max_bytes=300, max_files=1000)
    seen = bytearray()

    async def follow() -> None:
        async for chunk in read_log(writer.path, PodLogOptions(follow=True), writer):
            seen.extend(chunk)

    follower = asyncio.create_task(follow())
    for number in range(200):
        writer.write("stdout", b"line %d\n" % number)
        if number % 7 == 0:
            await asyncio.sleep(0)
    writer.close()
    await asyncio.wait_for(follower, 5)
    assert bytes(seen) == b"".join(b"line %d\n" % number for number in range(200))


async def test_since_limit_and_timestamps(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    start = datetime(2026, 1, 1, tzinfo=UTC)
    stamps = [(start + timedelta(seconds=n)).strftime("%Y-%m-%dT%H:%M:%S") for n in range(3)]
    path.write_text("".join(f"{stamp}.000000001Z stdout F x\n" for stamp in stamps))
    assert await text(path, PodLogOptions(since=start + timedelta(seconds=1))) == b"x\nx\n"
    assert await text(path, PodLogOptions(limit_bytes=3)) == b"x\nx"
    stamped = await text(path, PodLogOptions(timestamps=True, tail_lines=1))
    assert stamped == b"2026-01-01T00:00:02.000000001Z x\n"


async def test_a_missing_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await text(tmp_path / "0.log")


async def test_a_full_disk_loses_output_but_nothing_else() -> None:
    writer = LogWriter(Path("/dev/full"))
    writer.write("stdout", b"gone\n")
    assert writer.lost_bytes > 0
    writer.close()


async def test_states_of_a_bar_are_readable_before_its_line_ends(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "0.log")
    writer.write("stderr", b"\r 10%")
    writer.write("stderr", b"\r 20%")
    assert await text(writer.path) == b"\r 10%\r 20%"
    writer.write("stdout", b"message\n")  # which is no part of the bar, nor of its line
    writer.write("stderr", b"\r 30%")
    writer.write("stderr", b"Traceback\n")
    writer.write("stdout", b"windows\r")
    writer.write("stdout", b"\n")
    assert await text(writer.path) == b"\r 10%\r 20%\rmessage\n\r 30%\nTraceback\nwindows\r\n"


@pytest.mark.parametrize("end", [b"", b"\n"], ids=["without an end", "with its end"])
async def test_a_long_line_is_written_in_pieces(tmp_path: Path, end: bytes) -> None:
    writer = LogWriter(tmp_path / "0.log")
    writer.write("stdout", b"x" * (40 << 10) + end)
    entries = [entry.split(b" ", 3) for entry in writer.path.read_bytes().splitlines()]
    sizes = [(tag, len(piece) >> 10) for _, _, tag, piece in entries]
    assert sizes == [(b"P", 16), (b"P", 16), *([(b"F", 8)] if end else [])]
    writer.close()
    assert await text(writer.path) == b"x" * (40 << 10) + end


async def test_a_line_of_several_entries_has_one_time(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "0.log")
    writer.write("stderr", b"\r 10%")
    writer.write("stderr", b"\r 20%\n")
    shown = (await text(writer.path, PodLogOptions(timestamps=True))).split(b" ", 1)
    assert datetime.fromisoformat(shown[0][:26].decode() + "+00:00")
    assert shown[1] == b"\r 10%\r 20%\n"
