"""What can go wrong with a checkpoint.

CheckpointError
├── MemoryShortError      the state does not fit into shared memory
├── UnsavableError        a value does not pickle, or would need code to load
├── CorruptError          checksums, sizes or structure are not what was written
├── ForeignFolderError    the folder holds another format
├── FolderInUseError      another job that lives writes into the folder
└── StorageError          the target cannot be written or read
    └── StepTakenError    another saver committed the step meanwhile
"""


class CheckpointError(Exception):
    """A checkpoint cannot be taken or loaded."""


class MemoryShortError(CheckpointError):
    """The state does not fit into shared memory; the message says what would help."""


class UnsavableError(CheckpointError):
    """A value of the state does not pickle, or could not be loaded without running its code."""


class CorruptError(CheckpointError):
    """Bytes are not those that were written. Nothing of it may be used."""


class ForeignFolderError(CheckpointError):
    """The folder holds checkpoints of another format."""


class FolderInUseError(CheckpointError):
    """Another job, which lives, writes into the folder."""


class StorageError(CheckpointError):
    """The target cannot be written or read at this time."""


class StepTakenError(StorageError):
    """Another saver committed the same step while this one was writing it; trying is over."""
