"""What ``sitecustomize`` beside it does in a worker: learning, warming, waiting, last words.

Loaded by path and dropped from ``sys.modules`` at once. Messages to the agent are lines of JSON on
a socket that both share.
"""

from __future__ import annotations

import atexit
import json
import os
import sys

TYPE_CHECKING = False  # typing is not imported: the script may never need it
if TYPE_CHECKING:
    from typing import Any

_SETTLED_S = 1.0
"""So long no module may have been imported before the list of modules counts as complete."""
_LOOK_EVERY_S = 0.25
_STEP_SIZE = 8


def run(mode: str, descriptor: int) -> None:
    """Act as ``learn``, ``plain`` or ``spare`` (see the agent); return when the script may run."""
    os.set_inheritable(descriptor, False)
    if mode == "spare":
        _take(_wait_for_order(descriptor))
    elif mode == "learn":
        import _thread  # noqa: PLC0415 - a thread that threading.enumerate() does not show

        _thread.start_new_thread(_learn, (descriptor,))
    if mode != "learn":
        os.close(descriptor)
    _arrange_stacks()
    atexit.register(_last_words)


def _wait_for_order(descriptor: int) -> Any:
    streams = [os.dup(1), os.dup(2)]
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1), os.dup2(nothing, 2)
    wanted = json.loads(_read_line(descriptor))
    _preload(wanted["modules"])
    if wanted["step"] and "torch" in sys.modules:
        _tiny_step(sys.modules["torch"])
    _regain_priority(wanted["nice"])
    os.write(descriptor, b'{"ready": true}\n')
    order = json.loads(_read_line(descriptor))
    for number, (kept, path) in enumerate(zip(streams, order["streams"], strict=True), start=1):
        source = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644) if path else kept
        os.dup2(source, number)
        os.close(source)
        if source != kept:
            os.close(kept)
    os.close(nothing)
    return order


def _take(order: Any) -> None:
    os.environ.clear()
    os.environ.update(order["env"])


def _read_line(descriptor: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            os._exit(0)  # the agent is gone, or wants no spare any more
        line += piece
    return line


def _preload(modules: list[str]) -> None:
    import importlib  # noqa: PLC0415

    for name in modules:
        if name not in sys.modules:
            # Whatever an import raises, the script is the one to meet it, not its spare.
            try:
                importlib.import_module(name)
            except Exception:
                continue


def _tiny_step(torch: Any) -> None:
    """One step of training on the processor: threads, kernels and caches come to life."""
    state = torch.get_rng_state()
    layer = torch.nn.Linear(_STEP_SIZE, _STEP_SIZE)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        layer(torch.randn(_STEP_SIZE, _STEP_SIZE)).pow(2).mean().backward()
        optimizer.step()
    torch.set_rng_state(state)


def _regain_priority(nice: int) -> None:
    if os.path.exists("/proc/self/autogroup"):
        with open("/proc/self/autogroup", "w") as group:
            group.write("0")
    for thread in os.listdir("/proc/self/task"):
        if os.getpriority(os.PRIO_PROCESS, int(thread)) != nice:
            os.setpriority(os.PRIO_PROCESS, int(thread), nice)


def _learn(descriptor: int) -> None:
    """Tell the agent what has been imported, once that stops growing."""
    import time  # noqa: PLC0415

    count, since = 0, time.monotonic()
    while time.monotonic() - since < _SETTLED_S:
        time.sleep(_LOOK_EVERY_S)
        if len(sys.modules) != count:
            count, since = len(sys.modules), time.monotonic()
    modules = [
        [name, getattr(module, "__file__", None)] for name, module in list(sys.modules.items())
    ]
    line = json.dumps({"modules": modules}) + "\n"
    try:
        with os.fdopen(descriptor, "w") as agent:
            agent.write(line)
    except OSError:
        return  # the agent is gone


def _arrange_stacks() -> None:
    """Have the stacks of all threads written to a file when the agent sends the signal."""
    number, _, path = os.environ.pop("GANGLINE_STACKS", "").partition(":")
    if path:
        import faulthandler  # noqa: PLC0415

        file = open(path, "w")  # noqa: SIM115 - stays open as long as the process
        faulthandler.register(int(number), file=file, all_threads=True)


def _last_words() -> None:
    """Write an uncaught exception where torch's ``record`` would have written it."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    error = getattr(sys, "last_value", None)
    if not path or error is None or os.path.exists(path):
        return
    import time  # noqa: PLC0415
    import traceback  # noqa: PLC0415

    words = traceback.format_exception(type(error), error, error.__traceback__)
    extra = {"py_callstack": "".join(words), "timestamp": str(int(time.time()))}
    message = {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}
    try:
        with open(path, "w") as file:
            json.dump({"message": message}, file)
    except OSError:
        return  # nowhere to write: the traceback is on stderr all the same
