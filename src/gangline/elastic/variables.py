"""Environment variables of which more than one part knows. Costs nothing to import."""

from typing import Final

SECRET_VARIABLE: Final = "GANGLINE_JOB_SECRET"
"""The job's secret, in hexadecimal digits."""
LOCAL_MASTER_VARIABLE: Final = "GANGLINE_LOCAL_MASTER_ADDR"
"""host:port of a master for the processes of one node alone. Not the name by which a cluster gives
its master: a launcher that a worker starts would take itself for a node of this job."""
