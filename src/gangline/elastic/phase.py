"""What a node does at a moment, for the account of goodput."""


class Phase:
    """The words; open: unknown ones count as waiting."""

    WAITING = "waiting"
    STARTING = "starting"
    CHECKING = "checking"
    TRAINING = "training"
    RESTARTING = "restarting"
    CHECKPOINT = "checkpoint"
    """Training stands still while a checkpoint is written or read."""
    HANGING = "hanging"
