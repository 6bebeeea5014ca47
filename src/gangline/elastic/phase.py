"""Phases of a node for the goodput account."""


class NodePhase:
    """Names of the phases. The set is open: unknown ones count as waiting."""

    WAITING = "waiting"
    STARTING = "starting"
    CHECKING = "checking"
    TRAINING = "training"
    RESTARTING = "restarting"
    CHECKPOINT = "checkpoint"
    """Training waits while a checkpoint is written or read."""
    HANGING = "hanging"
