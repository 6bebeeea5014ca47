"""``gangline master``: run the master of one elastic job."""

from gangline.elastic.master.command import master_command

__all__ = ["master_command"]
