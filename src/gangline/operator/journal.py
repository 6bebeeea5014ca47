"""What the log says of a job's life: a line for each condition that begins to hold.

Reasons only. Messages may quote a program's last words, which are the user's and not for a log that
others read; they are in the job's status. Failed jobs are no warning: the operator is well.
"""

import logging

from gangline.api.kubeflow import JobStatus
from gangline.operator import conditions

log = logging.getLogger(__name__)


def note(before: JobStatus, after: JobStatus) -> None:
    """Log what a stored status says that the one before it did not."""
    for condition in after.conditions:
        began = condition.status == conditions.TRUE
        if began and not conditions.holds(before.conditions, condition.type):
            fields = {"reason": condition.reason, "restarts": after.restarts.total}
            log.info("job is %s", condition.type, extra=fields)
