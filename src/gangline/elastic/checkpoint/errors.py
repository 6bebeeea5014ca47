"""Errors of checkpoints.

CheckpointError
├── MemoryShortError      the state does not fit into shared memory
├── UnsavableError        a value cannot be pickled, or would need code to load
├── CorruptError          checksums, sizes or structure differ from what was written
├── ForeignFolderError    the folder holds another format
├── FolderInUseError      another running job or process writes into the folder
├── InsecureMemoryError   another user can change the folder in shared memory
├── UnsharedFolderError   the nodes do not see the same folder
└── StorageError          the target cannot be written or read
    └── StepTakenError    another saver committed the step meanwhile
"""


class CheckpointError(Exception):
    """A checkpoint cannot be taken or loaded."""


class MemoryShortError(CheckpointError):
    """The state does not fit into shared memory; the message names remedies."""


class UnsavableError(CheckpointError):
    """A value of the state cannot be pickled, or could not be loaded without running its code."""


class CorruptError(CheckpointError):
    """The bytes differ from those that were written. None of them may be used."""


class ForeignFolderError(CheckpointError):
    """The folder holds checkpoints of another format."""


class FolderInUseError(CheckpointError):
    """Another running job, or another process as the same rank, writes into the folder."""


class UnsharedFolderError(CheckpointError):
    """The folder is not the same on all nodes; the message names those that do not see it."""


class InsecureMemoryError(CheckpointError):
    """Another user of the machine owns or can change the job's folder in shared memory."""


class StorageError(CheckpointError):
    """The target cannot be written or read at this time."""


class StepTakenError(StorageError):
    """Another saver committed the same step while this one was writing it; not retried."""
