"""A job that was started from Python, and what can be done with it."""

import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from gangline.sdk.diagnosis import Diagnosis
from gangline.sdk.functions.job import NoResult, is_result, read_results
from gangline.sdk.jobs import Job, JobState, format_run_time
from gangline.sdk.logs import LogLine

ProgressCallback = Callable[[Job], None]
"""Callback that receives a job whenever its state has changed."""


class FunctionFailed(RuntimeError):
    """The job of a function has failed; the message has the cause."""


class JobCalls(Protocol):
    """What a handle needs of its client."""

    def get(self, name: str) -> Job:
        """Return a job."""
        ...

    def wait(self, name: str, progress: ProgressCallback | None = None) -> Job:
        """Wait until a job has ended."""
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
    """A job of ``Client.run``. Its methods work while its client is open."""

    def __init__(self, client: JobCalls, name: str) -> None:
        self._client = client
        self.name = name

    @property
    def job(self) -> Job:
        """The present state of the job.

        Raises:
            NoSuchJob: the job was deleted.
        """
        return self._client.get(self.name)

    def wait(self, progress: ProgressCallback | None = None) -> Job:
        """Wait until the job has ended, and return it. A notebook shows its state meanwhile."""
        return self._client.wait(self.name, progress or _notebook_progress())

    def logs(self, *, follow: bool = False) -> Iterator[LogLine]:
        """Yield the lines of all replicas, without those that carry results."""
        for line in self._client.logs(self.name, follow=follow):
            if not is_result(line.text):
                yield line

    def results(self) -> dict[int, Any]:
        """Wait for the end; return what the function has returned by rank, without None.

        Raises:
            FunctionFailed: the job has failed.
            NoResult: a log lacks lines of a result.
        """
        job = self.wait()
        if job.state is not JobState.SUCCEEDED:
            raise FunctionFailed(f"{self.name} has failed: {job.reason or self.diagnose().summary}")
        return read_results(line.text for line in self._client.logs(self.name))

    def result(self, rank: int = 0) -> Any:
        """Wait for the end; return what the function has returned on one rank.

        Raises:
            FunctionFailed: the job has failed.
            NoResult: a log lacks lines of a result, or there is no such rank.
        """
        results = self.results()
        ranks = self.job.desired
        if not 0 <= rank < ranks:
            raise NoResult(f"{self.name} has ranks 0 to {ranks - 1}, not {rank}")
        return results.get(rank)

    def diagnose(self) -> Diagnosis:
        """Find out why the job failed or is pending."""
        return self._client.diagnose(self.name)

    def delete(self) -> None:
        """Delete the job with all objects that it owns."""
        self._client.delete(self.name)

    def __repr__(self) -> str:
        job = self.job
        return f"<job {self.name}: {job.state}, {job.running}/{job.desired} running>"

    def _repr_html_(self) -> str:
        return self.job._repr_html_()


def _notebook_progress() -> ProgressCallback | None:
    """Return a callback that updates one output of a notebook; None outside notebooks."""
    shell = sys.modules.get("IPython")
    if shell is None or shell.get_ipython() is None:
        return None
    notebook = sys.modules["IPython.display"]
    shown = notebook.display(notebook.HTML(""), display_id=True)

    def update(job: Job) -> None:
        state = f"<p>{job.state} after {format_run_time(job)}</p>"
        shown.update(notebook.HTML(job._repr_html_() + state))

    return update
