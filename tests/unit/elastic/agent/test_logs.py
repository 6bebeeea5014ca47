"""The console's copy of the output of workers: whole lines, bars, and lines that wait for more."""

import asyncio
import os
from pathlib import Path

import pytest

from gangline.elastic.agent.logs import LogTee, WorkerFiles
from gangline.elastic.agent.settings import LogSettings


def files(folder: Path, rank: int) -> WorkerFiles:
    own = folder / str(rank)
    own.mkdir()
    out = own / "stdout.log"
    return WorkerFiles(out, None, (out,), own / "error.json", own / "stacks.txt")


async def test_bars_and_unfinished_lines_are_shown_and_no_two_ranks_share_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = ""

    async def until(text: str) -> None:
        nonlocal shown
        async with asyncio.timeout(30):
            while text not in shown:
                shown += capsys.readouterr().out
                await asyncio.sleep(0.005)

    tee = LogTee(LogSettings(poll_interval_s=0.005), "r")
    ranks = [files(tmp_path, rank) for rank in range(2)]
    for number, rank in enumerate(ranks):
        tee.start(rank, number, number)
    first, second = (os.open(rank.teed_files[0], os.O_WRONLY | os.O_CREAT) for rank in ranks)
    os.write(first, b"\r 50%")
    await until("[r0]: 50%")
    os.write(first, b"|##")
    await until("[r0]: 50%|##")
    os.write(first, b"\r100%\r\n")
    await until("[r0]:100%\n")
    os.write(first, b"asks: \xc3")
    await until("[r0]:asks: ")
    os.write(second, b"answer\n")
    await until("\n[r1]:answer\n")
    os.write(first, b"\xa9nd")
    await tee.end()
    shown += capsys.readouterr().out
    assert shown == "[r0]: 50%|##\n[r0]:100%\n[r0]:asks: \n[r1]:answer\n[r0]:\u00e9nd\n"
    os.close(first)
    os.close(second)
