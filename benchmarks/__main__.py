"""Runs all benchmarks, or the named ones: ``python -m benchmarks [api_server first_step ...]``."""

import importlib
import sys

ALL = (
    "cluster_start",
    "api_server",
    "operator_creation",
    "operator_volume",
    "scheduler_core",
    "scheduler_bind",
    "memory",
    "first_step",
    "command_start",
    "client_speed",
    "job_list",
    "log_following",
    "master_load",
    "checkpoint_speed",
    "checkpoint_node",
    "checkpoint_memory",
)


def main() -> None:
    """Run the benchmarks in their order; each prints its results."""
    for name in sys.argv[1:] or ALL:
        if name not in ALL:
            sys.exit(f"no benchmark {name!r}; there are: {', '.join(ALL)}")
        print(f"--- {name}", flush=True)
        importlib.import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    main()
