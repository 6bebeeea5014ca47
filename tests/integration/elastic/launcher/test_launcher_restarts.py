"""How long a restart takes, how many there are, and which rank is named for it."""

import os
import re
import signal

import pytest

STUBBORN = """
    import os, signal, time
    attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["RANK"]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as in a C call that never returns
    print(f"up {attempt} {rank} {os.getpid()}\\n", end="", flush=True)
    while attempt == 0:
        time.sleep(0.05)
"""
WAITS = """
    import os, signal, time
    from torch.distributed.wait import barrier
    attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["RANK"]
    if rank == "1":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(f"up {attempt} {rank} {os.getpid()}\\n", end="", flush=True)
    while attempt == 0:
        barrier() if rank == "0" else time.sleep(1000)
"""


def pid_of(run, attempt: int, rank: int) -> int:
    run.until(f"up {attempt} {rank} ")
    return int(re.findall(rf"up {attempt} {rank} (\d+)\n", run.output)[0])


@pytest.mark.parametrize(
    ("flags", "limit"),
    [
        pytest.param((), "3 s", id="default"),
        pytest.param(("--restart-grace", 0.5), "0.5 s", id="flag"),
        pytest.param(("--shutdown-timeout", 1), "1 s", id="not longer than the end of the run"),
    ],
)
def test_restart_waits_for_its_own_grace_period_only(launch, script, flags, limit):
    run = launch("--nproc-per-node", 2, "--no-standby", *flags, script(STUBBORN))
    first = pid_of(run, 0, 0)
    os.kill(pid_of(run, 0, 1), signal.SIGKILL)
    pid_of(run, 1, 1)
    assert run.wait() == 0, run.output
    assert f"workers were killed because they did not end within {limit} after" in run.output
    assert first != pid_of(run, 1, 0)


def test_end_of_the_run_waits_for_the_shutdown_timeout(launch, script):
    run = launch("--shutdown-timeout", 4, "--restart-grace", 0, script(STUBBORN))
    pid_of(run, 0, 0)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM
    assert "did not end within 4 s after SIGTERM" in run.output


@pytest.mark.usefixtures("torch_that_waits")
@pytest.mark.parametrize("cause", ["Stopped", "Hang"])
def test_rank_for_which_the_others_wait_is_killed_at_once(launch, script, cause):
    flags = ("--nproc-per-node", 2, "--no-standby", "--hang-timeout", 2, "--restart-grace", 200)
    run = launch(*flags, script(WAITS))
    if cause == "Stopped":
        os.kill(pid_of(run, 0, 1), signal.SIGSTOP)
    pid_of(run, 1, 1)
    assert run.wait() == 0, run.output
    assert f"{cause}: No worker has made progress for 2 s" in run.output
    assert "waiting for it: rank 0" in run.output
    assert ("is stopped (by SIGSTOP" in run.output) == (cause == "Stopped")
    assert "were killed because" not in run.output


def test_stopped_worker_is_reported_without_a_time_out(launch, script):
    path = script("""
        import os, time
        print("up 0 0", os.getpid(), flush=True)
        while not os.path.exists("end"):
            time.sleep(0.05)
    """)
    run = launch("--no-standby", path)
    pid = pid_of(run, 0, 0)
    os.kill(pid, signal.SIGSTOP)
    run.until(f"rank 0 (pid {pid}) on ")
    assert re.search(r"is stopped \(by SIGSTOP or a debugger; SIGCONT continues it\)", run.output)
    (path.parent / "end").touch()
    os.kill(pid, signal.SIGCONT)
    assert run.wait() == 0, run.output


def test_stopped_worker_gets_the_signal_of_the_end_of_the_run(launch, script):
    path = script("""
        import signal, sys, time
        def end(number, frame):
            print("ended in order", flush=True)
            sys.exit(0)
        signal.signal(signal.SIGTERM, end)
        import os
        print("up 0 0", os.getpid(), flush=True)
        while True:
            time.sleep(0.05)
    """)
    run = launch("--shutdown-timeout", 200, path)
    os.kill(pid_of(run, 0, 0), signal.SIGSTOP)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM
    assert "ended in order" in run.output


LEAVES = """
    import os, sys
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(1))
    if rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os._exit(0)
    dist.all_reduce(torch.ones(1))
    print("came through", rank, flush=True)
    dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rank_that_ends_early_with_0_is_named_and_the_group_restarts(launch, script):
    path, flags = script(LEAVES), ("--standalone", "--nproc-per-node", 2, "--max-restarts", 1)
    run = launch(*flags, path)
    assert run.wait() == 0, run.output
    assert run.output.count("came through") == 2
    assert re.search(
        r"EndedEarly \(exit code 1\): .* Message: rank 1 \(pid \d+\) on \S+; "
        r"rank 0 lost its connection",
        run.output,
    ), run.output


FAILS = """
    import os, signal, time
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    print("try", attempt, flush=True)
    step = min(attempt, {last})
    with open(os.environ["GANGLINE_PROGRESS_FILE"], "w") as progress:
        progress.write(f"step {{step}}\\n")
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("flag", "last", "tries"),
    [
        pytest.param("2", 3, 3, id="as torchrun"),
        pytest.param("2/1h", 0, 3, id="no progress in the window"),
        pytest.param("2/1h", 3, 6, id="renewed by progress"),
    ],
)
def test_budget_of_restarts(launch, script, flag, last, tries):
    run = launch("--no-standby", "--max-restarts", flag, script(FAILS.format(last=last)))
    assert run.wait() == 128 + signal.SIGKILL
    assert run.output.count("try ") == tries, run.output
    assert "all 2 restarts" in run.output


LOOPS = """
    import os, signal, sys, time
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    def busy_loop():
        while True:
            pass
    for step in range(3):
        dist.all_reduce(torch.ones(1))
    if rank == 1 and attempt == 0:
        busy_loop()
    dist.all_reduce(torch.ones(1))
    print("came through", rank, flush=True)
    dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_busy_loop_on_one_rank_is_found_without_reports(launch, script):
    run = launch("--standalone", "--nproc-per-node", 2, "--no-standby", "--hang-timeout", 5,
                 "--restart-grace", 200, script(LOOPS))  # fmt: skip
    assert run.wait() == 0, run.output
    assert run.output.count("came through") == 2
    assert re.search(
        r"rank 1 on \S+ is at \S+:\d+ in busy_loop; waiting for it: rank 0", run.output
    )


def test_ranks_whose_data_loaders_work_do_not_hang(launch, script):
    path = script("""
        import os, time
        import torch.multiprocessing
        from torch.utils.data import DataLoader, Dataset

        class Records(Dataset):
            def __len__(self):
                return 2
            def __getitem__(self, number):
                while number and not os.path.exists("seen"):
                    # The first rank waits for its storage, the second computes.
                    if os.environ["RANK"] == "0":
                        time.sleep(0.05)
                return number

        if __name__ == "__main__":
            import torch.distributed as dist
            dist.init_process_group("gloo")
            for record in DataLoader(Records(), num_workers=1):
                dist.all_reduce(record)
            if os.environ["RANK"] == "1":
                time.sleep(1000)
            dist.barrier()
    """, "loads.py")  # fmt: skip
    run = launch("--standalone", "--nproc-per-node", 2, "--no-standby", "--hang-timeout", 1.5,
                 "--max-restarts", 0, path)  # fmt: skip
    run.until("which work")
    (path.parent / "seen").touch()
    assert run.wait() == 134, run.output
    (at,) = re.findall(r"Message: rank 1 (?:on \S+ )?is at \S+loads.py:(\d+) ", run.output)
    line = path.read_text().splitlines()[int(at) - 1]
    assert line.strip() == "time.sleep(1000)", "what hangs after the data have come is found"
