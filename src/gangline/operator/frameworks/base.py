"""The protocol that each job kind implements."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from gangline.api.kubeflow import JobStatus
from gangline.operator.job import Kind, TrainingJob
from gangline.operator.stored import StoredJob


@dataclass(frozen=True, slots=True)
class Reading:
    """A job in the common form, and the errors in its specification."""

    job: TrainingJob
    mistakes: str = ""
    """Every error in the specification, as text; empty if it is valid. If the specification cannot
    be decoded, ``job`` has no roles.
    """


@runtime_checkable
class ReadsStatus(Protocol):
    """For kinds whose stored status may have another form, written by an upstream operator."""

    def read_status(self, stored: StoredJob) -> JobStatus:
        """Decode the stored status into the common form."""


class Framework(Protocol):
    """Reads jobs of one kind. ``read`` never raises: errors in the job are part of the result."""

    @property
    def kind(self) -> Kind:
        """The properties of the kind."""

    def read(self, stored: StoredJob) -> Reading:
        """Read a job into the common form."""
