"""The description of a container for a fork server: what the commands of a cold start do."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from gangline.forkserver import ContainerSpec, EnterProgram
from gangline.local.kubelet.runtime import enter_container
from gangline.local.kubelet.runtime.child_process import MINIMAL_ENVIRONMENT
from gangline.local.kubelet.runtime.interface import ContainerPlan
from gangline.local.kubelet.runtime.isolation import ContainerEntry, Isolation, IsolationLevel


def describe_container(
    plan: ContainerPlan,
    isolation: Isolation,
    entry: ContainerEntry,
    script: str,
    procs_files: Sequence[str],
) -> ContainerSpec:
    """Return the description of a container.

    Args:
        plan: the container.
        isolation: namespaces that the machine allows; not `IsolationLevel.NONE`.
        entry: its root and user.
        script: the setup script, with its report.
        procs_files: the files of the control groups to join.
    """
    as_root = isolation.level is IsolationLevel.ROOT
    enter: EnterProgram | None = None
    if not entry.identity.changes_nothing:
        enter = {"source": _enter_source(), "options": entry.enter_options()}
    return {
        "argv": list(plan.argv),
        "env": dict(plan.env),
        "groups": list(procs_files),
        "network": (plan.netns or "") if as_root else "",
        "own_users": not as_root,
        "setup": {"script": script, "env": dict(MINIMAL_ENVIRONMENT)},
        "root": entry.root,
        "workdir": entry.workdir,
        "enter": enter,
    }


@lru_cache(maxsize=1)
def _enter_source() -> str:
    return Path(enter_container.__file__).read_text()
