"""One node with real processes, without torch: failures, restarts, output, signals."""

import os
import signal
import socket
import sys

import pytest

from gangline.elastic.checkpoint.snapshot.directory import (
    SaverSettings,
    job_directory,
    write_settings,
)

HELD = """
    import os, time
    attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["RANK"]
    print(f"up {attempt} {rank} {os.getpid()} {os.environ['MASTER_PORT']}\\n", end="", flush=True)
    while attempt == 0:
        time.sleep(0.05)
"""


def workers(run, attempt: int, count: int) -> dict[int, int]:
    """Wait for the workers of an attempt; return rank -> pid."""
    run.until(f"up {attempt} ", count)
    lines = [each.split() for each in run.output.splitlines() if f"up {attempt} " in each]
    return {int(line[-3]): int(line[-2]) for line in lines}


def test_a_killed_worker_is_replaced_together_with_its_peers(launch, script):
    run = launch("--nproc-per-node", 2, script(HELD))
    first = workers(run, 0, 2)
    os.kill(first[1], signal.SIGKILL)
    second = workers(run, 1, 2)
    assert run.wait() == 0, run.output
    assert not set(first.values()) & set(second.values())
    assert "rank 1" in run.output
    assert "Killed (exit code 137)" in run.output
    ports = {line.split()[-1] for line in run.output.splitlines() if line.startswith("up ")}
    assert len(ports) == 2, "each attempt has a store of its own"


def test_the_traceback_is_the_last_thing_that_a_user_sees(launch, script):
    path = script("""
        import os
        if os.environ["RANK"] == "1":
            raise RuntimeError("the loss is not a number")
        import time
        time.sleep(1000)
    """)
    run = launch("--nproc-per-node", 2, path)
    assert run.wait() == 1
    last = run.output.splitlines()
    assert last[-1] == "RuntimeError: the loss is not a number"
    report = run.output[run.output.index("FAILED on") :]
    assert f"Traceback of rank 1 on {socket.gethostname()}" in report
    assert "first to fail: rank 1 (local rank 1" in report


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_forwarded_and_ends_the_run(launch, script, number, tmp_path):
    shared_memory = tmp_path / ("long" * 25)  # longer than the name of a socket may be
    home = job_directory(shared_memory, "job", "there")
    home.mkdir(mode=0o700, parents=True)
    write_settings(home, SaverSettings("there", "job", linger_s=5))
    path = script("""
        import signal, sys, time
        def end(number, frame):
            sys.stdout.write(f"worker got {signal.Signals(number).name}\\n")
            sys.exit(0)
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, end)
        print("ready", flush=True)
        while True:
            time.sleep(0.05)
    """)
    memory = {"GANGLINE_CHECKPOINT_MEMORY": str(shared_memory)}
    run = launch("--nproc-per-node", 2, "--rdzv-id", "job", path, **memory)
    run.until("ready", 2)
    run.process.send_signal(number)
    assert run.wait() == 128 + number
    assert run.output.count(f"worker got {number.name}") == 2
    # Checkpoints in memory are written to storage only if the node may be removed.
    assert ("checkpoint in there: " in run.output) == (number == signal.SIGTERM)


def test_output_goes_to_files_and_console_as_asked(launch, script, tmp_path):
    path = script("""
        import os, sys
        print("out of", os.environ["RANK"], flush=True)
        print("error of", os.environ["RANK"], file=sys.stderr, flush=True)
    """)
    logs = tmp_path / "logs"
    run = launch(
        "--nproc-per-node", 2, "--log-dir", logs, "--redirects", "0:2,1:3", "--tee", "1:1",
        "--role", "trainer", "--rdzv-id", "job", "--duplicate-stdout-filters", "out of 1,x", path,
    )  # fmt: skip
    assert run.wait() == 0, run.output
    attempt = next(logs.glob("job_*/attempt_0"))
    assert "out of 0" in run.output
    assert "error of" not in run.output
    assert "[trainer1]:out of 1\n" in run.output
    assert (attempt / "0/stderr.log").read_text() == "error of 0\n"
    assert (attempt / "1/stdout.log").read_text() == "out of 1\n"
    assert (attempt / "1/stderr.log").read_text() == "error of 1\n"
    assert (attempt / "filtered_stdout.log").read_text() == "[trainer1]:out of 1\n"


def test_a_program_that_is_no_python_script_runs(launch):
    run = launch("--no-python", "--nproc-per-node", 2, "echo", "local rank ${local_rank}")
    assert run.wait() == 0
    assert sorted(run.output.splitlines()) == ["local rank 0", "local rank 1"]


def test_a_module_runs(launch, script):
    script("print('a module')", "part.py")
    run = launch("-m", "part")
    assert (run.wait(), run.output) == (0, "a module\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        pytest.param(["/no/such.py"], 2, "there is no script /no/such.py", id="no script"),
        pytest.param(["--no-python", "no-such-program"], 127, "no such program", id="no program"),
        pytest.param(["--no-python", "/"], 126, "Permission denied", id="not executable"),
        pytest.param(["--nnodes", "2:1", "x"], 2, "no more than the maximum", id="reversed range"),
        pytest.param(["--log-dir", "/dev/null/x", __file__], 1, "/dev/null/x", id="log folder"),
    ],
)
def test_bad_input_is_refused_with_a_reason(launch, arguments, code, message):
    run = launch(*arguments)
    assert run.wait() == code
    assert message in run.output
    assert "Traceback" not in run.output


def test_no_spares_if_disabled_or_memory_is_short(launch, script):
    path = script("import time\nprint('up', flush=True)\ntime.sleep(3)")
    without = launch("--no-standby", path)
    short = launch("--standby-reserve", 1 << 30, path)
    assert (without.wait(), short.wait()) == (0, 0)
    assert "spare" not in without.output
    assert "memory is short: no spare interpreters" in short.output


def test_the_launcher_does_not_import_torch():
    code = (
        "import sys, gangline.elastic.launcher.main; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'gangline.kube')))"
    )
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0
