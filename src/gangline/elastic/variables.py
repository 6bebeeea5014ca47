"""Environment variables that several packages use. Importing it costs nothing."""

from typing import Final

SECRET_VARIABLE: Final = "GANGLINE_JOB_SECRET"
"""The job's secret in hexadecimal digits."""
LOCAL_MASTER_VARIABLE: Final = "GANGLINE_LOCAL_MASTER_ADDR"
"""host:port of a master for the processes of a single node.

It differs from the variable with which a cluster names its master: with that one, a launcher
started by a worker would join this job as a node.
"""
