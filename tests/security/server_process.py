"""API servers in processes of their own, forked from one that has imported their modules.

A fork takes a tenth of the second of processor time that a new interpreter needs.
"""

import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["apiserver_process"])
STARTS_WITHIN_S = 60.0


def start_server(*arguments: str) -> tuple[ForkServerProcess, str]:
    """Run the program ``apiserver_process`` with these arguments; return it and its URL."""
    receiver, sender = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=_serve, args=(sender, arguments))
    process.start()
    sender.close()
    with receiver, os.fdopen(os.dup(receiver.fileno())) as output:
        assert receiver.poll(STARTS_WITHIN_S), "the API server does not start"
        return process, output.readline().strip()


def _serve(output: Connection, arguments: tuple[str, ...]) -> None:
    from apiserver_process import main

    os.dup2(output.fileno(), 1)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    main(list(arguments))
