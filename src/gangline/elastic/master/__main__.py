"""``python -m gangline.elastic.master``: the master, as a pod runs it."""

from gangline.elastic.master.command import master_command

if __name__ == "__main__":
    master_command()
