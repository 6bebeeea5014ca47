"""What Arena 0.15 has and Gangline does not have under the same name: tables without behaviour.

``main`` reads the aliases and the commands, ``submit`` the kinds and flags, and a page of the
documentation lists all of them. An alias does what its command does. What Gangline has no use for
is refused with the reason and what to use, or accepted with a note if it changes nothing.
"""

from typing import Final

COMMAND_ALIASES: Final = {"ls": "list", "log": "logs", "del": "delete"}

_TRAINS_ONLY: Final = "Gangline trains models and does nothing else"

REFUSED_COMMANDS: Final = {
    "serve": f"{_TRAINS_ONLY}: serve a model with KServe, or with a Deployment and a Service.",
    "model": f"{_TRAINS_ONLY}: register models with the client of your registry, such as mlflow.",
    "evaluate": f"{_TRAINS_ONLY}: submit an evaluation as a job of its own with 'gangline submit'.",
    "llm": f"{_TRAINS_ONLY}: serve a language model with KServe or with vLLM.",
    "cron": (
        "Gangline starts no jobs on a schedule: run 'gangline submit KIND --name "
        "NAME-$(date +%Y%m%d-%H%M)' from cron or in a CronJob of Kubernetes, as "
        "docs/scheduled-jobs.md shows."
    ),
}
"""What is printed for a command that Gangline does not have."""

_RAY: Final = f"{_TRAINS_ONLY}: apply a RayJob with kubectl; KubeRay runs it."
_SPARK: Final = f"{_TRAINS_ONLY}: apply a SparkApplication with kubectl for the Spark operator."
_VOLCANO: Final = (
    "Gangline runs no Volcano Jobs: submit the job of your framework, such as 'submit pytorch'; "
    "all its pods are placed together."
)

REFUSED_KINDS: Final = {
    **dict.fromkeys(("ray", "rayjob", "rj"), _RAY),
    **dict.fromkeys(("spark", "sparkjob"), _SPARK),
    **dict.fromkeys(("volcano", "volcanojob", "vj"), _VOLCANO),
}
"""What is printed for a kind of job after ``submit`` that Gangline does not have."""

UNUSED_GLOBAL_FLAGS: Final = {
    "--arena-namespace": "the operator needs no namespace that clients know",
    "--helm-binary": "no chart is rendered",
    "--pprof": "use py-spy to profile gangline",
    "--trace": "use py-spy to trace gangline",
}
"""Global flags that change nothing, with the reason."""

_NO_LAUNCHER: Final = "an elastic job has no launcher"
_RESTARTS: Final = "--retry sets how often a replica restarts"

UNUSED_SUBMIT_FLAGS: Final = {
    "--spot-instance": "workers on any node may leave and join",
    "--max-wait-time": "a job starts as soon as --min-workers fit",
    "--launcher-selector": _NO_LAUNCHER,
    "--launcher-annotation": _NO_LAUNCHER,
    "--job-restart-policy": _RESTARTS,
    "--worker-restart-policy": _RESTARTS,
    "--ssh-secret": "workers need no SSH",
    "--ssh-port": "the launcher starts workers without SSH",
}
"""Flags of Arena's ``submit`` that change nothing here, with the reason."""

SWITCHES: Final = frozenset(("--spot-instance", "--helm-binary", "--pprof", "--trace"))
"""Of the flags above those without a value."""


def note_unused(flag: str, reason: str) -> str:
    """Return the note about a flag that changes nothing."""
    return f"Note: {flag} has no effect: {reason}."
