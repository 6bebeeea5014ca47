"""Runs all benchmarks, or the named ones: ``python -m benchmarks [api_server first_step ...]``."""

import importlib
import sys

ALL = {
    "cluster_start": "cluster.start",
    "api_server": "cluster.api_server",
    "input_costs": "cluster.input_costs",
    "operator_volume": "operator.volume",
    "operator_train_jobs": "operator.train_jobs",
    "component_sizes": "operator.component_sizes",
    "scheduler_core": "scheduler.core",
    "scheduler_bind": "scheduler.bind",
    "scheduler_start": "scheduler.start",
    "scheduler_fill": "scheduler.fill",
    "scheduler_end_to_end": "scheduler.end_to_end",
    "scheduler_stranded": "scheduler.stranded",
    "scheduler_many_queues": "scheduler.many_queues",
    "scheduler_forecast": "scheduler.forecast",
    "memory": "cluster.memory",
    "isolation": "cluster.isolation",
    "soak": "cluster.soak",
    "first_step": "cluster.first_step",
    "command_start": "client.command_start",
    "client_speed": "client.client_speed",
    "job_list": "client.job_list",
    "log_following": "client.log_following",
    "dashboard_load": "dashboard.load",
    "master_load": "elastic.master_load",
    "brain_store": "brain.store",
    "elastic_survivors": "elastic.survivors",
    "facts": "elastic.facts",
    "checkpoint_speed": "checkpoint.speed",
    "checkpoint_node": "checkpoint.node",
    "checkpoint_memory": "checkpoint.memory",
    "brain_models": "brain.models",
    "brain_least_squares": "brain.least_squares",
    "brain_noise": "brain.noise",
    "brain_decisions": "brain.decisions",
    "brain_slow_ranks": "brain.slow_ranks",
    "brain_allocation": "brain.allocation",
    "brain_cluster": "brain.cluster",
    "brain_load": "brain.load",
    "sizing": "sizing.measured",
    "sizing_times": "sizing.times",
    "sizing_plan_time": "sizing.plan_time",
    "sizing_published": "sizing.published",
    "sizing_fit": "sizing.fit",
}
"""Modules of ``benchmarks`` by the name of their benchmark, in the order of a complete run."""


def main() -> None:
    """Run the benchmarks in their order; each prints its results."""
    for name in sys.argv[1:] or ALL:
        if name not in ALL:
            sys.exit(f"no benchmark {name!r}; known: {', '.join(ALL)}")
        print(f"--- {name}", flush=True)
        importlib.import_module(f"benchmarks.{ALL[name]}").main()


if __name__ == "__main__":
    main()
