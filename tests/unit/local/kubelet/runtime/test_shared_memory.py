"""Memory of processes that share pages, as forks of one process do."""

import subprocess
import sys

from gangline.local.kubelet.runtime.process_tree import process_tree_usage, proportional_memory

MIB = 1 << 20
FORKS = f"""
import os, sys
held = bytearray(b"x" * (40 * {MIB}))
for _ in range(2):
    if os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
print("forked", flush=True)
sys.stdin.read()
"""


def test_pages_of_forks_count_once_against_a_limit() -> None:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", FORKS],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        assert parent.stdout.readline() == "forked\n"
        usage, exact = process_tree_usage(parent.pid), proportional_memory(parent.pid)
        parent.communicate()
    assert usage is not None
    assert usage.memory_bytes > 120 * MIB
    assert exact is not None
    assert 40 * MIB <= exact < 80 * MIB
