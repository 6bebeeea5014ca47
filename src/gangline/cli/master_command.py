"""``gangline master``: the master of one elastic job, by itself."""

from gangline.elastic.master.command import master_command

__all__ = ["master_command"]
