"""torchtune: the recipe and configuration that ``tune run`` gets, as upstream chooses them.

The runtime's name decides the model, the number of processes decides the recipe. Arguments that the
job gives are kept.
"""

from collections.abc import Sequence

from gangline.api.trainer.merge import Json

COMMAND = ("tune", "run")

_MODELS = {
    "torchtune-llama3.2-1b": "llama3_2/1B",
    "torchtune-llama3.2-3b": "llama3_2/3B",
    "torchtune-qwen2.5-1.5b": "qwen2_5/1.5B",
}
_LORA_ARGUMENT = "model.lora_attn_modules"
_SINGLE_RECIPES = ("full_finetune_single_device", "lora_finetune_single_device")


def is_torchtune(container: Json) -> bool:
    """Return whether a container starts torchtune without naming a recipe."""
    return tuple(container.get("command") or ()) == COMMAND


def command(container: Json, runtime: str, nodes: int, processes: int | str) -> list[str]:
    """Return the command of a container with recipe and configuration.

    Args:
        container: the container.
        runtime: the name of the runtime; one that is not shipped keeps its command.
        nodes: the number of nodes.
        processes: the processes of each node.
    """
    model = _MODELS.get(runtime)
    if model is None:
        return list(COMMAND)
    method = "lora" if _uses_lora(container.get("args") or ()) else "full"
    devices = "single_device" if (nodes, processes) == (1, 1) else "distributed"
    config = f"{model}_{method}" + ("_single_device" if devices == "single_device" else "")
    return [*COMMAND, f"{method}_finetune_{devices}", "--config", config]


def with_rendezvous(command: Sequence[str], address: str) -> list[str]:
    """Add the rendezvous address, which recipes for one device do not take."""
    if len(command) == len(COMMAND) or command[2] in _SINGLE_RECIPES:
        return list(command)
    return [*COMMAND, f"--rdzv_endpoint={address}", *command[2:]]


def _uses_lora(arguments: Sequence[str]) -> bool:
    return any(each.startswith(_LORA_ARGUMENT) for each in arguments)
