"""What a framework module offers to the engine's shell."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from gangline.api.kubeflow import JobStatus
from gangline.operator.job import Kind, TrainingJob
from gangline.operator.stored import StoredJob


@dataclass(frozen=True, slots=True)
class Reading:
    """A job in the common form, and what is wrong with it."""

    job: TrainingJob
    mistakes: str = ""
    """Every mistake in the specification, for people; empty if it can be carried out. If it
    cannot even be read, ``job`` has no roles."""


@runtime_checkable
class ReadsStatus(Protocol):
    """For kinds whose stored status may be an upstream operator's, in another form."""

    def read_status(self, stored: StoredJob) -> JobStatus:
        """Read where the job is in its life."""


class Framework(Protocol):
    """Reads jobs of one kind. It never fails: what is wrong with a job is part of the reading."""

    @property
    def kind(self) -> Kind:
        """The facts of the kind."""

    def read(self, stored: StoredJob) -> Reading:
        """Read a job into the common form."""
