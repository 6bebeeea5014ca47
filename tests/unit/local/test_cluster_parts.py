"""Checks before a cluster starts: directory, lock, ports, machine."""

import os
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gangline.kube.config.embedded import RunRecord, process_start_ticks
from gangline.local import ports
from gangline.local.directory import (
    ClusterAlreadyRunning,
    ClusterDirectory,
    ClusterError,
    ClusterLock,
    ClusterNotRunning,
)
from gangline.local.machine import Machine, divide_machine
from gangline.local.settings import ClusterSettings


def a_note(pid: int, start: int) -> RunRecord:
    return RunRecord(pid, start, "https://127.0.0.1:1", datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def cluster(tmp_path: Path) -> ClusterDirectory:
    directory = ClusterDirectory(tmp_path)
    directory.prepare()
    return directory


@pytest.mark.parametrize("name", ["", "Big", "a/b", "..", "-a", "a" * 41])
def test_a_name_that_cannot_be_a_folder_everywhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ClusterError, match="cannot name a cluster"):
        ClusterDirectory(tmp_path, name).prepare()


def test_a_folder_that_cannot_be_made_is_named_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ClusterError, match=r"cannot write to .*file.*GANGLINE_HOME"):
        ClusterDirectory(tmp_path / "file").prepare()


def test_full_disk_is_named_in_the_error() -> None:
    with pytest.raises(ClusterError, match="Not a directory"):
        ClusterDirectory(Path("/dev/full")).prepare()


def test_a_note_is_believed_only_while_its_process_lives(cluster: ClusterDirectory) -> None:
    assert cluster.read_run_record() is None
    pid = os.getpid()
    cluster.write_run_record(a_note(pid, process_start_ticks(pid)))
    assert cluster.read_run_record() is not None
    cluster.write_run_record(a_note(pid, process_start_ticks(pid) + 1))
    assert cluster.read_run_record() is None, "another process has taken the number"
    assert cluster.last_run_record() is not None


def test_a_broken_note_is_none(cluster: ClusterDirectory) -> None:
    (cluster.folder / "run.json").write_text("{")
    assert cluster.read_run_record() is None


def test_second_process_is_refused_with_the_pid_of_the_first(cluster: ClusterDirectory) -> None:
    pid = os.getpid()
    with ClusterLock(cluster):
        cluster.write_run_record(a_note(pid, process_start_ticks(pid)))
        with (
            pytest.raises(ClusterAlreadyRunning, match=f"process {pid}.*gangline down"),
            ClusterLock(cluster),
        ):
            pass
    with ClusterLock(cluster):
        pass


def test_stopping_a_nonexistent_cluster_raises(tmp_path: Path) -> None:
    from gangline.local.daemon import stop_cluster

    with pytest.raises(ClusterNotRunning, match="no cluster nobody"):
        stop_cluster(ClusterDirectory(tmp_path, "nobody"))


@pytest.fixture
def listener() -> socket.socket:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_requested_port_in_use_is_an_error_with_its_owner(
    listener: socket.socket,
) -> None:
    port = listener.getsockname()[1]
    with pytest.raises(ClusterError, match=rf"port {port} is in use by .*{os.getpid()}.*--port"):
        ports.choose_port("127.0.0.1", port, ())


def test_preferred_port_in_use_is_skipped(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    assert ports.choose_port("127.0.0.1", None, (port,)) == 0
    assert ports.choose_port("127.0.0.1", 0, (port,)) == 0


def test_an_address_that_is_not_ours_is_an_error() -> None:
    with pytest.raises(ClusterError, match="cannot listen"):
        ports.choose_port("192.0.2.77", 6443, ())


MACHINE = Machine(cpu_milli=8000, memory_bytes=32 << 30, gpus=(0, 1, 2, 3))


def test_a_machine_is_divided_evenly(tmp_path: Path) -> None:
    nodes = divide_machine(ClusterSettings(home=tmp_path, nodes=3), MACHINE)
    assert [node.name for node in nodes] == ["node-1", "node-2", "node-3"]
    assert {node.cpu_milli for node in nodes} == {2666}
    assert [node.gpus for node in nodes] == [(0,), (1,), (2,)]


def test_gpus_beyond_those_found_are_pretended_and_never_shared(tmp_path: Path) -> None:
    nodes = divide_machine(ClusterSettings(home=tmp_path, nodes=3, gpus=2), MACHINE)
    handed_out = [index for node in nodes for index in node.gpus]
    assert handed_out == [0, 1, 2, 3, 4, 5]


def test_requested_node_size_is_independent_of_the_machine(tmp_path: Path) -> None:
    settings = ClusterSettings(home=tmp_path, nodes=2, cpus=16, memory="64Gi", gpus=0)
    (node, _) = divide_machine(settings, MACHINE)
    assert (node.cpu_milli, node.memory_bytes, node.gpus) == (16000, 64 << 30, ())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nodes": 0}, "--nodes 0"),
        ({"nodes": 5000}, "--nodes 5000"),
        ({"cpus": -1.0}, "--cpus"),
        ({"gpus": -1}, "--gpus"),
        ({"memory": "8GB"}, "--memory 8GB"),
        ({"memory": "1Ki"}, "--memory"),
    ],
)
def test_numbers_without_sense_are_refused(
    tmp_path: Path, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ClusterError, match=message):
        divide_machine(ClusterSettings(home=tmp_path, **settings), MACHINE)  # type: ignore[arg-type]
