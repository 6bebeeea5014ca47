"""Detects folders with checkpoints of other programs.

A training that finds no step of ours would start from scratch. A folder with checkpoints of another
format is then most likely a mistake: it is refused, with a message that explains how to load them.
"""

from collections.abc import Mapping, Sequence

from gangline.elastic.checkpoint.format.manifest import (
    METADATA,
    parse_partial_folder,
    parse_step_folder,
)
from gangline.elastic.checkpoint.storage.target import StorageTarget

_LOOKED_INTO = 50
"""Largest number of entries of the folder that are listed, because a store may hold many."""
_SAVED = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")
_TRACKERS = {
    "dlrover_latest.txt": "of DLRover",
    "._dlrover_ckpt_stage": "of DLRover",
    "latest_checkpointed_iteration.txt": "of Megatron",
}
HINTS = {
    "of DLRover": "load STEP/rank_RANK.pt with torch.load(…, weights_only=True), or a STEP that "
    "has .metadata with torch.distributed.checkpoint.load",
    "of Megatron": "load them with Megatron",
    "of torch.distributed.checkpoint": "load them with torch.distributed.checkpoint.load(state, "
    "checkpoint_id=…)",
    "of torch.save": "load them with torch.load(…, weights_only=True), or with safetensors",
}


def list_folder_names(target: StorageTarget) -> dict[str, list[str]]:
    """List the folder (under ``""``) and those of its entries that may be folders."""
    top = target.list_names("")
    found = {"": top}
    for name in [one for one in top if not one.endswith(_SAVED)][:_LOOKED_INTO]:
        try:
            found[name] = target.list_names(name)
        except NotADirectoryError:
            continue
    return found


def detect_format(names: Mapping[str, Sequence[str]]) -> str | None:
    """Return the foreign format, a key of ``HINTS``; ``None`` for our own or no checkpoints.

    ``names`` is the result of the listing. A folder with a step of ours, even unfinished, is ours.
    """
    top = names[""]
    if any(parse_step_folder(name) is not None or parse_partial_folder(name) for name in top):
        return None
    for name in top:
        if name in _TRACKERS:
            return _TRACKERS[name]
    if any(_is_distributed(inside) for inside in names.values()):
        return "of torch.distributed.checkpoint"
    if any(name.endswith(_SAVED) for inside in names.values() for name in inside):
        return "of torch.save"
    return None


def _is_distributed(names: Sequence[str]) -> bool:
    return METADATA in names or any(name.endswith(".distcp") for name in names)


def foreign_folder_message(folder: str, kind: str) -> str:
    return (
        f"{folder} holds checkpoints {kind}, which are not loaded automatically: {HINTS[kind]}; "
        "then give the Checkpointer a folder of its own"
    )
