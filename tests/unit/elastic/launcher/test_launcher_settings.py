"""Agent settings from flags and environment."""

import math
import resource
import signal
from pathlib import Path

import pytest

from gangline.elastic.agent.rendezvous import WorldSpec
from gangline.elastic.agent.settings import HangSettings
from gangline.elastic.agent.worker_group import DevicesError, worker_environment
from gangline.elastic.launcher.flags import ALL_FLAGS, FlagError, parse_flags
from gangline.elastic.launcher.local_master import node_identity
from gangline.elastic.launcher.machine import (
    device_count,
    device_shortage,
    parse_cpu_list,
    processors_near,
    tightest_worker_limit,
)
from gangline.elastic.launcher.rendezvous_config import build_rendezvous_config
from gangline.elastic.launcher.settings import (
    NodeCheckOptions,
    build_settings,
    installation_paths,
    speaks_agent_store,
    torch_release,
)
from gangline.elastic.nodecheck.result import CheckWorkload

SCRIPT = __file__


def settings(*arguments: str, **environment: str):
    return build_settings(
        parse_flags([*arguments, SCRIPT, "--lr", "1"], environment, "run"), environment, "node"
    )[0]


def meet(*arguments: str, **environment: str):
    return build_rendezvous_config(
        parse_flags([*arguments, SCRIPT], environment, "run"), environment
    )


@pytest.mark.parametrize("flag", ALL_FLAGS, ids=lambda flag: flag.name)
def test_both_spellings_and_the_environment_are_read(flag):
    name = flag.name.replace("-", "_")
    text = str(flag.choices[0]) if flag.choices else "7"
    expected = True if flag.is_switch else flag.type(text)
    for spelling in {f"--{flag.name}", f"--{name}"}:
        flags = parse_flags([spelling, *([] if flag.is_switch else [text]), "x"], {}, "run")
        assert getattr(flags, name) == expected
    value = "1" if flag.is_switch else text
    flags = parse_flags(["x"], {f"PET_{name.upper()}": value}, "run")
    assert getattr(flags, name) == expected
    assert name in flags.given


def test_the_command_line_comes_before_the_environment():
    assert parse_flags(["--nnodes", "2", "x"], {"PET_NNODES": "3"}, "run").nnodes == "2"


def test_what_follows_the_script_belongs_to_the_script():
    result = settings("--nproc-per-node", "3", "--max-restarts=2")
    assert result.command.arguments[1:] == ("-u", SCRIPT, "--lr", "1")
    assert (result.local_world_size, result.max_restarts) == (3, 2)


def checks(*arguments: str):
    return NodeCheckOptions.from_flags(parse_flags([*arguments, SCRIPT], {}, "run"), 2)


def test_node_check_limits_are_settable():
    result = checks("--check-matrix-size", "64", "--check-collective-mib", "0.5", "--precheck=1")
    assert result.enabled
    assert result.workload == CheckWorkload(matrix_size=64, collective_bytes=1 << 19)
    result = checks("--check-timeout", "5", "--straggler-ratio", "3")
    assert (result.workload, result.straggler_ratio) == (CheckWorkload(timeout_s=5), 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--check-matrix-size", "-1"], "--check-matrix-size -1: must be at least 0"),
        (["--check-timeout", "0"], "--check-timeout 0: must be at least 1"),
        (["--check-memory-limit", "30"], "--check-memory-limit 30: must be at most 1"),
        (["--straggler-ratio", "0.5"], "--straggler-ratio 0.5: must be at least 1"),
    ],
)
def test_invalid_node_check_limits_are_refused(arguments, message):
    with pytest.raises(FlagError) as refusal:
        checks(*arguments)
    assert message in str(refusal.value)


def test_signals_and_times_are_settable():
    result = settings("--signals-to-handle", "SIGUSR1,SIGTERM", "--shutdown-timeout", "5")
    assert result.signals == (signal.SIGUSR1, signal.SIGTERM)
    assert result.shutdown_s == 5
    assert settings(TORCH_ELASTIC_SHUTDOWN_TIMEOUT="7").shutdown_s == 7


@pytest.mark.parametrize(
    ("text", "hang"),
    [
        ("0", HangSettings()),
        ("30", HangSettings(30.0)),
        ("step=30,start=600,first_step=300,evaluation=1800,checkpoint=60",
         HangSettings(30.0, 600.0, 300.0, 1800.0, 60.0)),
        ("auto", HangSettings(1800.0, is_learned=True)),
        ("step=auto,start=600", HangSettings(1800.0, 600.0, is_learned=True)),
        ("evaluation=0", HangSettings(1800.0, evaluation_s=math.inf, is_learned=True)),
    ],
)  # fmt: skip
def test_hang_timeouts_of_phases_are_parsed(text, hang):
    assert settings("--hang-timeout", text).hang == hang


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--standalone", "--nnodes", "2"], "--standalone is for one node"),
        (["--standalone", "--node-rank", "1"], "--standalone is for one node"),
        (["--nnodes", "x"], "--nnodes x"),
        (["--nnodes", "0"], "at least one node"),
        (["--nnodes", "2", "--rdzv-backend", "c10d"], "--rdzv-endpoint"),
        (["--rdzv-backend", "etcd"], "no such server is needed"),
        (["--rdzv-endpoint", "a:1", "--rdzv-conf", "x=1"], "known are"),
        (["--rdzv-endpoint", "a:1", "--rdzv-conf", "timeout=x"], "must be seconds"),
        (["--rdzv-endpoint", "a:1", "--rdzv-conf", "timeout=-5"], "timeout=-5: must be seconds"),
        (["--rdzv-endpoint", "a:1", "--rdzv-conf", "last_call_timeout=nan"], "must be seconds"),
        (["--nnodes", "2", "--rdzv-endpoint", "a:x"], "a:x: the port x: must be between"),
        (["--nnodes", "2", "--rdzv-endpoint", "a:0"], "between 1 and 65535"),
        (["--nnodes", "2", "--rdzv-endpoint", "a:99999"], "between 1 and 65535"),
        (["--nnodes", "2", "--rdzv-endpoint", "a..b:7"], "must name a host"),
        (["--nnodes", "2", "--rdzv-endpoint", ":7"], "must name a host"),
        (["--nnodes", "2", "--node-rank", "0", "--master-port", "99999"], "--master-port 99999"),
        (["--nnodes", "2", "--node-rank", "2"], "--node-rank 2: must be between 0 and 1"),
        (["--nnodes", "2", "--node-rank", "-1"], "--node-rank -1: must be between 0 and 1"),
        (["--nnodes", "2", "--node-rank", "0", "--master-addr", "a..b"], "must name a host"),
        (["--master-port", "-1"], "--master-port -1: must be between"),
        (["--hang-timeout", "-1"], "--hang-timeout -1: must be seconds"),
        (["--hang-timeout", "nan"], "--hang-timeout nan: must be seconds"),
        (["--rdzv-endpoint", "a:1", "--nnodes", "2", "--node-unit", "3"], "--node-unit 3"),
        (["--nproc-per-node", "0"], "at least 1"),
        (["--nproc-per-node", "many"], "--nproc-per-node many"),
        (["--nproc-per-node", "9" * 12], "--nproc-per-node 9+: this machine cannot hold more than"),
        (["--nproc-per-node", "9" * 5000], "cannot hold more than \\d+ workers: "),
        (["--max-restarts", "-1"], "at least 0"),
        (["-m", "--no-python"], "exclude each other"),
        (["--start-method", "fork"], "--start-method fork"),
        (["--logs-specs", "mine"], "--logs-specs"),
        (["--event-log-handler", "mine"], "null or console"),
        (["--redirects", "4"], "--redirects 4"),
        (["--local-ranks-filter", "a"], "--local-ranks-filter a"),
        (["--signals-to-handle", "SIGKILL"], "cannot be handled"),
        (["--numa-binding", "socket"], "only node"),
        (["--brain", "ftp://brain"], "--brain ftp://brain: must be http"),
        (["--brain", "http://brain:x"], "--brain http://brain:x: must be http"),
        (["--ucp-device-type", "cpu"], "--ucp-device-type"),
        (["--membind-policy", "bind"], "--numa-affinity"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_with_a_reason(arguments, message):
    with pytest.raises(FlagError, match=message):
        settings(*arguments)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"GANGLINE_MASTER_ADDR": "m:x"}, "the master's address m:x: the port"),
        ({"DLROVER_MASTER_ADDR": "m" * 64 + ":7"}, "must name a host"),
        ({"GANGLINE_MASTER_ADDR": "m:7", "NODE_ID": "first"}, "NODE_ID.* must be a number"),
        ({"GANGLINE_MASTER_ADDR": "m:7", "NODE_RANK": "first"}, "must be a number, not first"),
    ],
)
def test_variables_of_a_cluster_are_validated(environment, message):
    with pytest.raises(FlagError, match=message):
        meet(**environment)


@pytest.mark.parametrize(
    "address", ["node0", "node0:29400", "10.0.0.1:7", "[fd00::1]:7", "fd00::1"]
)
def test_endpoints_have_the_usual_forms(address):
    assert meet(
        "--nnodes", "2", "--rdzv-backend=c10d", "--rdzv-endpoint", address
    ).master_address == (address)


@pytest.mark.parametrize(
    ("arguments", "port"),
    [
        (["--nnodes", "1"], None),
        (["--master-port", "4711"], 4711),
        (["--master-port", "0"], None),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"], None),
    ],
)
def test_single_node_needs_no_master(arguments, port):
    result = meet(*arguments)
    found = (result.master_address, result.store_host, result.store_port)
    assert found == (None, "localhost", port)


@pytest.mark.parametrize(
    ("arguments", "environment", "address", "hosts", "rank"),
    [
        pytest.param(
            ["--node-rank", "1", "--master-addr", "a"], {}, "a:29500", False, 1, id="static"
        ),
        pytest.param(
            ["--node-rank", "0", "--master-port", "7"], {}, "127.0.0.1:7", True, 0, id="static, 0"
        ),
        pytest.param(
            ["--rdzv-backend", "c10d", "--rdzv-endpoint", "a:7"], {}, "a:7", None, -1, id="c10d"
        ),
        pytest.param(
            ["--rdzv-backend", "c10d", "--rdzv-endpoint", "a:7", "--rdzv-conf", "is_host=1"],
            {}, "a:7", True, -1, id="c10d, asked to host",
        ),
        pytest.param(
            [], {"GANGLINE_MASTER_ADDR": "m:1", "NODE_RANK": "3"}, "m:1", False, 3, id="cluster"
        ),
        pytest.param(
            [], {"DLROVER_MASTER_ADDR": "m:1", "WORKER_RANK": "2"}, "m:1", False, 2, id="dlrover"
        ),
    ],
)  # fmt: skip
def test_several_nodes_meet_at_a_master(arguments, environment, address, hosts, rank):
    result = meet("--nnodes", "2:4", *arguments, **environment)
    assert (result.master_address, result.hosts_master, result.node_rank) == (address, hosts, rank)
    assert (result.min_nodes, result.max_nodes) == (2, 4)


def test_rendezvous_timeouts_have_two_names():
    base = ["--nnodes", "2", "--rdzv-endpoint", "a:1", "--rdzv-conf"]
    assert meet(*base, "last_call_timeout=7,timeout=9").last_call_s == 7
    result = meet(*base, "lastcall_timeout=8,join_timeout=10,node_unit=2")
    assert (result.last_call_s, result.join_timeout_s, result.node_unit) == (8, 10, 2)


@pytest.mark.parametrize(
    ("arguments", "environment", "seconds"),
    [
        pytest.param(["--rdzv-endpoint", "a:1"], {}, 60, id="no timeout given"),
        pytest.param([], {"GANGLINE_MASTER_ADDR": "m:1"}, 600, id="a cluster starts it"),
        pytest.param(
            ["--rdzv-endpoint", "a:1", "--rdzv-conf", "join_timeout=3"], {}, 3, id="stated"
        ),
        pytest.param(
            ["--rdzv-conf", "timeout=900"], {"GANGLINE_MASTER_ADDR": "m:1"}, 900,
            id="stated in a cluster",
        ),
    ],
)  # fmt: skip
def test_a_master_is_tried_for_the_stated_time(arguments, environment, seconds):
    result = node_identity(settings(), meet("--nnodes", "2", *arguments, **environment))
    assert result.connect_timeout_s == seconds


def test_auto_config_takes_the_number_of_nodes_from_the_environment():
    result = meet("--auto-config", NODE_NUM="4", GANGLINE_MASTER_ADDR="m:1")
    assert (result.min_nodes, result.max_nodes) == (4, 4)


def test_virtual_local_ranks_see_one_device_each():
    world = WorldSpec(0, 0, 1, 0, 2, "h", 1)
    result = settings("--virtual-local-rank", "--nproc-per-node", "2")
    environment = worker_environment(result, world, 1, {"CUDA_VISIBLE_DEVICES": "4,6"})
    assert (environment["LOCAL_RANK"], environment["CUDA_VISIBLE_DEVICES"]) == ("0", "6")
    with pytest.raises(DevicesError, match="lower --nproc-per-node"):
        worker_environment(result, world, 1, {"CUDA_VISIBLE_DEVICES": "4"})


def test_ranks_count_on_from_those_of_the_nodes_before():
    world = WorldSpec(3, 1, 2, 2, 4, "h", 9, round=5)
    environment = worker_environment(settings("--role", "r"), world, 1, {"HOME": "/"})
    expected = {
        "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2", "ROLE_NAME": "r", "TORCHELASTIC_RESTART_COUNT": "3",
        "MASTER_ADDR": "h", "MASTER_PORT": "9", "HOME": "/",
    }  # fmt: skip
    assert {name: environment[name] for name in expected} == expected


def test_devices_are_counted_without_torch(tmp_path: Path):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "davinci0", "davinci_manager"):
        (tmp_path / name).touch()
    assert device_count("nvidia.com/gpu", {}, tmp_path) == 2
    assert device_count("nvidia.com/gpu", {"CUDA_VISIBLE_DEVICES": "1"}, tmp_path) == 1
    assert device_count("nvidia.com/gpu", {"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == 0
    assert device_count("ascend-npu", {}, tmp_path) == 1


def test_more_workers_than_devices_give_a_warning(tmp_path: Path):
    for name in ("nvidia0", "nvidia1"):
        (tmp_path / name).touch()
    warning = device_shortage(4, "nvidia.com/gpu", {"CUDA_VISIBLE_DEVICES": "0,1"}, tmp_path)
    assert "--nproc-per-node 4: this node has 2 nvidia.com/gpu devices" in warning
    assert "with CUDA_VISIBLE_DEVICES=0,1; workers of local rank 2 and above" in warning
    assert device_shortage(2, "nvidia.com/gpu", {}, tmp_path) == ""
    assert device_shortage(4, "ascend-npu", {}, tmp_path) == "", (
        "without devices there is none to share"
    )


def test_the_processors_near_a_device_are_those_of_its_numa_node(tmp_path: Path):
    device = tmp_path / "bus/pci/devices/0000:3b:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    (tmp_path / "devices/system/node/node1").mkdir(parents=True)
    (tmp_path / "devices/system/node/node1/cpulist").write_text("2-3,8\n")
    assert processors_near("00000000:3B:00.0", tmp_path) == {2, 3, 8}
    assert parse_cpu_list("5") == {5}


def installed(folder: Path, name: str) -> Path:
    (folder / name).mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("name", "release"),
    [
        ("torch-2.13.0+cpu.dist-info", (2, 13)),
        ("torch-1.13.1.egg-info", (1, 13)),
        ("torch-2.2.0a0+git1234.dist-info", (2, 2)),
        ("torch_geometric-2.1.0.dist-info", None),
        ("torch", None),
    ],
)
def test_release_of_an_installation(
    tmp_path: Path, name: str, release: tuple[int, int] | None
) -> None:
    assert torch_release([str(tmp_path / "absent"), str(installed(tmp_path, name))]) == release


def test_first_installation_of_the_search_path_counts(tmp_path: Path) -> None:
    old = installed(tmp_path / "old", "torch-2.0.1.dist-info")
    new = installed(tmp_path / "new", "torch-2.6.0.dist-info")
    assert torch_release([str(old), str(new)]) == (2, 0)
    assert torch_release([str(new), str(old)]) == (2, 6)


@pytest.mark.parametrize(("name", "speaks"), [("torch-2.1.2", False), ("torch-2.2.0", True)])
def test_interpreter_of_another_environment(tmp_path: Path, name: str, speaks: bool) -> None:
    packages = installed(tmp_path / "lib" / "python3.9" / "site-packages", f"{name}.dist-info")
    python = str(tmp_path / "bin" / "python")
    assert installation_paths(python) == [str(packages)]
    assert speaks_agent_store(python) is speaks
    assert speaks_agent_store("/usr/no/bin/python") is True, "unknown"


MEMORY_MIB = 4096
FILES, PROCESSES = 5000, 3000


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 4 GiB whose users may open 5,000 files and have 3,000 processes."""
    kernel = tmp_path / "sys/kernel"
    kernel.mkdir(parents=True)
    (kernel / "pid_max").write_text("32768\n")
    (kernel / "threads-max").write_text("190000\n")
    kib = MEMORY_MIB << 10
    (tmp_path / "meminfo").write_text(f"MemTotal: {kib} kB\nMemAvailable: {kib} kB\n")
    limits = {resource.RLIMIT_NOFILE: FILES, resource.RLIMIT_NPROC: PROCESSES}
    monkeypatch.setattr(resource, "getrlimit", lambda what: (limits[what],) * 2)
    return tmp_path


def limit(machine: Path, *, is_python: bool = True, is_root: bool = True):
    group = machine / "cgroup"
    return tightest_worker_limit(is_python=is_python, is_root=is_root, proc=machine, cgroup=group)


@pytest.mark.parametrize(
    ("who", "most", "reason"),
    [
        ({}, MEMORY_MIB // 2, f"there are {MEMORY_MIB} MiB of memory"),
        ({"is_python": False}, FILES, "the launcher may open 5000 files (ulimit -n)"),
        ({"is_python": False, "is_root": False}, PROCESSES, "(ulimit -u)"),
    ],
)
def test_tightest_limit_is_that_of_memory_files_or_processes(machine, who, most, reason):
    result = limit(machine, **who)
    assert result.max_workers == most
    assert reason in result.reason


@pytest.mark.parametrize("name", ["pids.max", "pids/pids.max"])
def test_a_container_has_a_limit_of_its_own(machine, name):
    path = machine / "cgroup" / name
    path.parent.mkdir(parents=True)
    path.write_text("100\n")
    assert (limit(machine).max_workers, limit(machine).reason) == (100, f"{path} is 100")
    path.write_text("max\n")
    assert limit(machine).max_workers == MEMORY_MIB // 2


def test_without_limits_kernel_maxima_apply(machine, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert limit(machine, is_python=False, is_root=False).max_workers == 32768
