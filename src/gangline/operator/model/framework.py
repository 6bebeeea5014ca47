"""The protocol that each job kind implements."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from gangline.api.jobs.kubeflow import JobStatus
from gangline.operator.model.job import JobKindInfo, NormalizedJob, RawJob


@dataclass(frozen=True, slots=True)
class ParsedJob:
    """A job in the common form, and the errors in its specification."""

    job: NormalizedJob
    spec_errors: str = ""
    """Every error in the specification, as text; empty if it is valid. If the specification cannot
    be decoded, ``job`` has no roles.
    """


@runtime_checkable
class DecodesStatus(Protocol):
    """For kinds whose stored status may have another form, written by an upstream operator."""

    def read_status(self, stored: RawJob) -> JobStatus:
        """Decode the stored status into the common form."""


@dataclass(frozen=True, slots=True)
class RuntimeCopy:
    """A runtime as a job uses it."""

    manifest: bytes
    """The runtime as JSON."""
    version: str
    """Differs between two contents."""
    is_stored: bool
    """True if it is the copy that was stored for the job; later changes do not reach the job."""


@runtime_checkable
class NeedsRuntime(Protocol):
    """For kinds whose jobs are completed by a runtime: a further object that they name."""

    def runtime_of(self, stored: RawJob) -> tuple[str, str]:
        """Return kind and name of a job's runtime; empty texts if they cannot be decoded."""

    def read_with_runtime(
        self, stored: RawJob, runtime: RuntimeCopy | None, *, is_known: bool
    ) -> ParsedJob:
        """Read a job into the common form.

        Without a runtime the job waits for it; if ``is_known`` (all runtimes were read), there is
        none.
        """


class Framework(Protocol):
    """Reads jobs of one kind. ``read`` never raises: errors in the job are part of the result."""

    @property
    def kind(self) -> JobKindInfo:
        """The properties of the kind."""

    def read(self, stored: RawJob) -> ParsedJob:
        """Read a job into the common form."""
