"""A job that was started from Python, and what can be done with it."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from gangline import display
from gangline.kube.errors import KubeError
from gangline.sdk.client import JobError, NoSuchJob
from gangline.sdk.diagnosis import Diagnosis
from gangline.sdk.functions.program import FunctionFailed, NoResult, is_report
from gangline.sdk.jobs import Job, format_run_time
from gangline.sdk.logs import LogLine

__all__ = ["FunctionFailed", "JobHandle", "NoResult", "ProgressCallback"]

ProgressCallback = Callable[[Job], None]
"""Callback that receives a job whenever its state has changed."""


class JobCalls(Protocol):
    """What a handle needs of its client."""

    def get(self, name: str) -> Job:
        """Return a job."""
        ...

    def wait(
        self,
        name: str,
        progress: ProgressCallback | None = None,
        *,
        timeout: float | None = None,
    ) -> Job:
        """Wait until a job has ended."""
        ...

    def results(self, name: str, *, timeout: float | None = None) -> dict[int, Any]:
        """Wait for the end; return what the function has returned by rank."""
        ...

    def logs(self, name: str, *, follow: bool = False) -> Iterator[LogLine]:
        """Yield the lines of all replicas."""
        ...

    def diagnose(self, name: str) -> Diagnosis:
        """Find out why a job failed or is pending."""
        ...

    def delete(self, name: str) -> None:
        """Delete a job."""
        ...


class JobHandle:
    """A job of ``Client.run``; it works after its client was closed, too.

    All methods raise ``NoSuchJob`` if the job was deleted, also if a new job has its name.
    """

    def __init__(self, client: JobCalls, name: str, uid: str = "") -> None:
        self._client = client
        self.name = name
        self._uid = uid

    @property
    def job(self) -> Job:
        """The present state of the job."""
        job = self._client.get(self.name)
        if self._uid and job.uid != self._uid:
            raise NoSuchJob(f"job {self.name!r} was deleted; another job has its name now")
        return job

    def wait(
        self, progress: ProgressCallback | None = None, *, timeout: float | None = None
    ) -> Job:
        """Wait until the job has ended, and return it. A notebook shows its state meanwhile.

        Raises:
            TimeoutError: it has not ended within ``timeout`` seconds; it goes on.
        """
        name = self.job.name
        return self._client.wait(name, progress or _notebook_progress(), timeout=timeout)

    def logs(self, *, follow: bool = False) -> Iterator[LogLine]:
        """Yield the lines of all replicas, without those that carry results."""
        name = self.job.name
        for line in self._client.logs(name, follow=follow):
            if not is_report(line.text):
                yield line

    def results(self, *, timeout: float | None = None) -> dict[int, Any]:
        """Wait for the end; return what the function has returned by rank, without None.

        Raises:
            FunctionFailed: the function has failed on a rank; the message has its traceback.
            NoResult: a log lacks lines of a result.
            TimeoutError: as ``wait``; all ranks must have ended in time.
        """
        end = None if timeout is None else time.monotonic() + timeout
        name = self.wait(timeout=timeout).name
        return self._client.results(name, timeout=end and max(0.0, end - time.monotonic()))

    def result(self, rank: int = 0, *, timeout: float | None = None) -> Any:
        """Wait for the end; return what the function has returned on one rank.

        Raises:
            FunctionFailed, TimeoutError: as ``results``.
            NoResult: a log lacks lines of a result, or there is no such rank.
        """
        ranks = self.job.desired
        if isinstance(rank, bool) or rank not in range(ranks):
            raise NoResult(f"{self.name} has ranks 0 to {ranks - 1}, not {rank}")
        return self.results(timeout=timeout).get(rank)

    def diagnose(self) -> Diagnosis:
        """Find out why the job failed or is pending."""
        return self._client.diagnose(self.job.name)

    def delete(self) -> None:
        """Delete the job with all objects that it owns."""
        self._client.delete(self.job.name)

    def __repr__(self) -> str:
        try:
            return repr(self.job)
        except (JobError, KubeError) as error:
            return f"<job {self.name}: {_absence(error)}>"

    def _repr_html_(self) -> str:
        try:
            return self.job._repr_html_()
        except (JobError, KubeError) as error:
            return display.note(f"{self.name}: {_absence(error)}")


def _absence(error: Exception) -> str:
    """Return why a job cannot be shown, in one line."""
    if isinstance(error, NoSuchJob):
        return "deleted"
    return f"state unknown: {' '.join(str(error).split())}"


def _notebook_progress() -> ProgressCallback | None:
    """Return a callback that updates one output of a notebook; None outside notebooks."""
    ipython = sys.modules.get("IPython")
    # IPython in a terminal has no kernel, and cannot replace what it has printed.
    if ipython is None or not hasattr(ipython.get_ipython(), "kernel"):
        return None
    notebook = sys.modules["IPython.display"]
    shown = notebook.display(notebook.HTML(""), display_id=True)

    def update(job: Job) -> None:
        state = f"<p>{job.state} after {format_run_time(job)}</p>"
        shown.update(notebook.HTML(job._repr_html_() + state))

    return update
