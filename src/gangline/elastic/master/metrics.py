"""The Prometheus metrics of the master."""

from gangline.elastic.master.core import MasterCore
from gangline.elastic.master.inquiries import world_progress


def metrics_page(core: MasterCore, now: float) -> bytes:
    """Return the metrics page: numbers only, no content of the job."""
    # The import is slow; only a master that is scraped needs it.
    from prometheus_client import CollectorRegistry, Gauge, generate_latest  # noqa: PLC0415

    registry = CollectorRegistry(auto_describe=False)
    goodput = core.state.persistent.account.goodput(now)
    state = core.rendezvous.state

    def gauge(name: str, text: str, value: float) -> None:
        Gauge(f"gangline_master_{name}", text, registry=registry).set(value)

    gauge("goodput_ratio", "Productive share of the job's wall time.", goodput.share)
    gauge("wall_seconds", "The job's wall time so far.", goodput.wall_s)
    gauge("productive_seconds", "Time spent in steps that were not lost.", goodput.productive_s)
    parts = Gauge(
        "gangline_master_unproductive_seconds",
        "Time that was not productive, by phase.",
        ["phase"],
        registry=registry,
    )
    for phase, seconds in goodput.parts_s.items():
        parts.labels(phase).set(seconds)
    gauge("step", "The last step reported.", goodput.step or 0)
    pace = world_progress(core)
    gauge("steps_per_second", "Speed of the slowest node.", pace.steps_per_s)
    gauge("checkpoint_step", "The last step of a complete checkpoint.", pace.checkpoint_step or 0)
    for name, text, number in (
        ("skipped", "Saves for which no memory was free", pace.saves.skipped),
        ("overtaken", "Saves that newer ones replaced before their upload", pace.saves.overtaken),
        ("failed", "Failed writes of a checkpoint to storage", pace.saves.failed),
    ):
        gauge(f"checkpoint_saves_{name}", f"{text}, since the workers' last start.", number)
    gauge("workers_cpus", "Processors that the workers use.", pace.cpus)
    gauge("workers_memory_bytes", "Memory that the workers use.", pace.memory_bytes)
    gauge("steps_lost", "Steps that were repeated.", goodput.steps_lost)
    gauge("restarts", "Worlds formed after the first.", goodput.restarts)
    gauge("failures", "Failures of workers that agents reported.", goodput.failures)
    gauge("round", "The round of the last world.", state.round)
    gauge("members", "Nodes in the world.", len(state.members))
    gauge("waiting_nodes", "Nodes that wait for a world.", len(state.waiting))
    gauge("gone_nodes", "Nodes that died or left.", len(state.gone))
    for name, text in (
        ("leased", "Leased shards."),
        ("done_shards", "Shards that are done."),
        ("done_records", "Records that are done."),
    ):
        family = Gauge(f"gangline_master_{name}", text, ["dataset"], registry=registry)
        for dataset in core.state.ledger.states():
            family.labels(dataset.name).set(getattr(dataset, name))
    return generate_latest(registry)
