"""The termination message of the launcher."""

from pathlib import Path

from gangline.elastic.agent.termination_message import (
    MAX_MESSAGE_BYTES,
    write_termination_message,
)


def test_report_replaces_the_content_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "termination-log"
    file.write_text("of the run before, which was longer")
    write_termination_message("train.py FAILED on n1: PeerLost", file)
    assert file.read_text() == "train.py FAILED on n1: PeerLost"


def test_long_report_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    file = tmp_path / "termination-log"
    file.touch()
    write_termination_message("cause" + "x" * 10_000 + "ValueError: bad", file)
    text = file.read_text()
    assert len(text) == MAX_MESSAGE_BYTES
    assert text.startswith("cause")
    assert text.endswith("ValueError: bad")


def test_file_that_the_kubelet_did_not_mount_is_not_created(tmp_path: Path) -> None:
    write_termination_message("report", tmp_path / "missing")
    (tmp_path / "link").symlink_to(tmp_path / "missing")
    write_termination_message("report", tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["link"]
