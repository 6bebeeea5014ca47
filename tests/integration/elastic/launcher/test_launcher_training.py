"""Real training over gloo: a worker is killed, then the node that ran the master."""

import os
import re
import signal

import pytest

DDP = """
    import os, sys, time
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1_000_000):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        if step == 0:
            count = os.environ["TORCHELASTIC_RESTART_COUNT"]
            print(f"stepped {count} of {dist.get_world_size()} by {os.getpid()} ", flush=True)
        done = torch.tensor([float(os.path.exists(sys.argv[1]))])
        dist.all_reduce(done)
        if done.item():
            break
        time.sleep(0.02)
    dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_training_goes_on_after_a_killed_worker_and_a_lost_host(
    launch, script, tmp_path, free_port
):
    end, path = tmp_path / "end", script(DDP)

    def node(host: int):
        return launch(
            "--nnodes", "1:2", "--rdzv-backend", "c10d",
            "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-conf",
            f"last_call_timeout=2,is_host={host}", "--max-restarts", 5,
            "--no-standby", path, end,
        )  # fmt: skip

    runs = [node(1), node(1)]  # the second takes the port over when the first has ended
    for run in runs:
        run.until("of 2 by ")
    pid = int(re.findall(r"by (\d+) ", runs[1].output)[0])
    os.kill(pid, signal.SIGKILL)
    for run in runs:
        run.until("stepped 1 of 2")
    runs[0].process.kill()
    runs[1].until("of 1 by ")
    end.touch()
    assert runs[1].wait() == 0, runs[1].output
