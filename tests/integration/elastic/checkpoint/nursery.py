"""A process that has imported PyTorch once and forks the processes that tests play with.

Importing costs four seconds of a processor, a fork milliseconds. It reads a line of JSON for each
request and answers with one: ``{"script": …}`` starts a script, ``{"wait": PID}`` waits for it.
"""

import importlib
import json
import os
import runpy
import sys
import traceback
from typing import Any

import torch

WARM = [
    "gangline.elastic.checkpoint.checkpointer",
    "gangline.elastic.checkpoint.training",
    "gangline.elastic.checkpoint.dlrover",
    "torch._dynamo",  # every optimizer imports it
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.nn.parallel",
]


def become(request: dict[str, Any]) -> None:
    """Turn this fork into the script; never returns."""
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        errors = os.open(request["errors"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number, descriptor in enumerate([nothing, output, errors]):
            os.dup2(descriptor, number)
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = [request["script"], *request["arguments"]]
        runpy.run_path(request["script"], run_name="__main__")
        sys.stdout.flush()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def main() -> None:
    for module in WARM:
        importlib.import_module(module)
    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)
            continue
        child = os.fork()
        if child == 0:
            become(request)
        print(json.dumps(child), flush=True)


if __name__ == "__main__":
    main()
