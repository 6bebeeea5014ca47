"""What remains of a run: nothing, also if the launcher was killed or its disk was full."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from gangline.elastic.agent.process import SHARED_MEMORY

DETACHED = """
    import os, signal, subprocess, sys, time
    code = '''
    import os, signal, sys, time
    if os.fork():
        os._exit(0)
    os.setsid()
    if sys.argv[1] == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("left", os.getpid(), flush=True)
    sys.stdout.close()
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    os.dup2(1, 2)
    time.sleep(1000)
    '''
    import textwrap
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), sys.argv[1]], check=True)
    if sys.argv[2] == "stays":
        time.sleep(1000)
"""
PATIENCE_S = 60.0


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def left(run) -> int:
    run.until("left ")
    return int(re.findall(r"left (\d+)\n", run.output)[0])


def until(condition) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("kind", ["mild", "stubborn"])
def test_processes_that_a_script_leaves_behind_end_with_the_job(launch, script, kind):
    run = launch("--shutdown-timeout", 1, script(DETACHED), kind, "ends")
    pid = left(run)
    assert run.wait() == 0, run.output
    assert not is_alive(pid)
    assert f"ending processes that the script has left behind: {pid} (" in run.output


def test_killed_launcher_leaves_neither_processes_nor_temporary_folders(launch, script, tmp_path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    run = launch("--no-standby", script(DETACHED), "stubborn", "stays", TMPDIR=str(temporary))
    pid = left(run)
    assert [*temporary.iterdir()]
    os.killpg(run.process.pid, signal.SIGKILL)
    until(lambda: not is_alive(pid))
    until(lambda: not [*temporary.iterdir()])


def test_only_the_launcher_and_its_workers_show_the_script_in_their_command_line(launch, script):
    path = script("import os, time; print('up', os.getpid(), 'of', flush=True); time.sleep(1000)")
    run = launch("--preload", "json", path)
    run.until("spare interpreters are warm")
    worker = int(re.findall(r"up (\d+) of", run.output)[0])
    children = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split()
    shown = {
        int(pid): Path(f"/proc/{pid}/cmdline").read_text().strip("\0").replace("\0", " ")
        for pid in children
    }
    assert str(path) in shown.pop(worker)
    assert sorted(shown.values()) == [
        "gangline-fork-server",
        f"gangline-guard of process {run.process.pid}",
    ]
    names = sorted(Path(f"/proc/{pid}/comm").read_text().strip() for pid in shown)
    assert names == ["gangline-fork", "gangline-guard"]


def test_requested_files_remain_when_the_launcher_is_killed(launch, script, tmp_path):
    run = launch("--log-dir", tmp_path / "logs", "--redirects", 1, "--no-standby",
                 script("import time\nprint('here', flush=True)\ntime.sleep(1000)"))  # fmt: skip
    until(lambda: [*(tmp_path / "logs").glob("*/attempt_0/0/stdout.log")])
    found = next((tmp_path / "logs").glob("*/attempt_0/0/stdout.log"))
    until(lambda: found.read_text() == "here\n")
    run.process.kill()
    run.wait()
    assert found.read_text() == "here\n"


def test_fork_of_a_warm_worker_ends_with_the_job(launch, script):
    path = script("""
        import os, signal, time
        attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        print(f"up {attempt} {os.getpid()} ", flush=True)
        if attempt == 0:
            time.sleep(1000)
        if os.fork() == 0:
            print("left", os.getpid(), flush=True)
            os.dup2(os.open(os.devnull, os.O_RDWR), 1)
            os.dup2(1, 2)
            time.sleep(1000)
        os._exit(0)
    """)
    run = launch(path)
    run.until("up 0 ")
    run.until("warm")
    os.kill(int(re.findall(r"up 0 (\d+) ", run.output)[0]), signal.SIGKILL)
    pid = left(run)
    assert run.wait() == 0, run.output
    assert not is_alive(pid)


def test_shared_memory_of_failed_workers_is_removed_and_their_children_may_finish(
    launch, script, tmp_path
):
    path = script("""
        import os, signal, subprocess, sys, time
        from multiprocessing import shared_memory
        import torch

        attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["RANK"]
        torch.multiprocessing.set_sharing_strategy("file_system")
        block = shared_memory.SharedMemory(f"left-{os.getpid()}", create=True, size=4096)
        tensor = torch.ones(1000).share_memory_()
        print(f"up {attempt} {os.getpid()} ", flush=True)
        open(f"{sys.argv[1]}-{attempt}-{rank}", "w").close()
        while not os.path.exists(f"{sys.argv[1]}-0-1"):
            time.sleep(0.01)
        if attempt == 0 and rank == "0":
            uploader = '''
        import signal, sys, time
        def finish(*_):
            time.sleep(0.3)
            open(sys.argv[1], "w").write("complete")
            sys.exit()
        signal.signal(signal.SIGTERM, finish)
        print("uploads", flush=True)
        time.sleep(1000)
            '''
            import textwrap
            child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(uploader), sys.argv[1]],
                                     stdout=subprocess.PIPE)
            child.stdout.readline()
            os.kill(os.getpid(), signal.SIGKILL)
        if attempt == 0:
            time.sleep(1000)
        block.unlink()
    """)
    run = launch("--nproc-per-node", 2, "--no-standby", path, tmp_path / "uploaded")
    assert run.wait() == 0, run.output
    pids = re.findall(r"up \d (\d+) ", run.output)
    assert len(pids) == 4, run.output
    assert (tmp_path / "uploaded").read_text() == "complete"
    names = {f"left-{pid}" for pid in pids}
    until(lambda: not names & {block.name for block in SHARED_MEMORY.iterdir()})
    assert not [block for pid in pids for block in SHARED_MEMORY.glob(f"torch_{pid}_*")]
