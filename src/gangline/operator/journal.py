"""Logs the life of jobs: one line for each condition that becomes True.

Only reasons are logged. Messages may quote the output of a user's program, which must not appear in
the operator's log; they are in the job's status. A failed job is not a warning: the operator works.
"""

import logging

from gangline.api.kubeflow import JobStatus
from gangline.operator import conditions

log = logging.getLogger(__name__)


def log_transitions(before: JobStatus, after: JobStatus) -> None:
    """Log the conditions that became True between two stored statuses."""
    for condition in after.conditions:
        began = condition.status == conditions.TRUE
        if began and not conditions.is_condition_true(before.conditions, condition.type):
            fields = {"reason": condition.reason, "restarts": after.restarts.total}
            log.info("job is %s", condition.type, extra=fields)
