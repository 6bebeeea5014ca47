"""What several controllers need to know of a pod."""

from gangline.api.core.pod import Pod

TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})


def is_pod_ready(pod: Pod) -> bool:
    """True if the pod's Ready condition is true."""
    return any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions)
