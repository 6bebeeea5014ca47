"""``gangline master``: run the master of one elastic job."""

from gangline.cli.params.command import Command
from gangline.elastic.master import command as master

master_command = Command(
    "master",
    params=master.master_command.params,
    callback=master.master_command.callback,
    help=master.master_command.help,
    examples="gangline master --job-name digits --port 8000 --port-file port",
)
