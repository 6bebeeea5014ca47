"""A process that has imported PyTorch once and forks the processes that tests play with.

Importing costs four seconds of a processor, a fork milliseconds. It reads a line of JSON for each
wish and answers each with one: ``{"script": …}`` starts a script, ``{"wait": PID}`` waits for it.
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
    "gangline.elastic.checkpoint.training_state",
    "gangline.elastic.checkpoint.integrations.dlrover",
    "torch._dynamo",  # every optimizer imports it
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.nn.parallel",
]


def become(wish: dict[str, Any]) -> None:
    """Turn this fork into the script; never returns."""
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        said = os.open(wish["said"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        wailed = os.open(wish["wailed"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number, descriptor in enumerate([nothing, said, wailed]):
            os.dup2(descriptor, number)
        os.environ.clear()
        os.environ.update(wish["environment"])
        sys.argv = [wish["script"], *wish["arguments"]]
        runpy.run_path(wish["script"], run_name="__main__")
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
        wish = json.loads(line)
        if "wait" in wish:
            _, status = os.waitpid(wish["wait"], 0)
            print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)
            continue
        child = os.fork()
        if child == 0:
            become(wish)
        print(json.dumps(child), flush=True)


if __name__ == "__main__":
    main()
