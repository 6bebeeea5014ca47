"""Cost of ``gangline --help`` and one completion, compared with kubectl and a bare interpreter.

Every run is a new process, in turn; medians of wall time, means of processor time.
"""

import os
import shutil
import statistics
import sys
from collections.abc import Sequence

from benchmarks.cluster.servers import GANGLINE, run_tool

RUNS = 21
BOUND_S = 0.150
TOOLS: dict[str, tuple[Sequence[str], dict[str, str]]] = {
    "python -c 'import click'": ([sys.executable, "-c", "import click"], {}),
    "kubectl --help": (["kubectl", "--help"], {}),
    "kubectl, one completion": (["kubectl", "__complete", "rollout", ""], {}),
    "gangline --help": ([*GANGLINE, "--help"], {}),
    "gangline, one completion": (
        GANGLINE,
        {
            "_GANGLINE_COMPLETE": "bash_complete",
            "COMP_WORDS": "gangline submit ",
            "COMP_CWORD": "2",
        },
    ),
}


def main() -> None:
    tools = {name: tool for name, tool in TOOLS.items() if shutil.which(tool[0][0])}
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in tools}
    for command, environment in tools.values():
        run_tool(command, os.environ | environment)  # compiles modules
    for _ in range(RUNS):
        for name, (command, environment) in tools.items():
            runs[name].append(run_tool(command, os.environ | environment)[:2])
    base = statistics.median(wall for wall, _ in runs["python -c 'import click'"])
    print(f"a command from start to end, medians of {RUNS} runs in turn, and parts of the first")
    for name, measured in runs.items():
        wall = statistics.median(wall for wall, _ in measured)
        spent = statistics.mean(spent for _, spent in measured)
        print(
            f"  {name + ':':27} {wall:.3f} s, processor {spent:.3f} s, {wall / base:.2f} of click's"
        )
    print(f"  to reach: under {BOUND_S:.3f} s")


if __name__ == "__main__":
    main()
