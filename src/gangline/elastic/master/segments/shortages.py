"""Failures of workers for lack of device memory, by the micro-batch that was too large."""

from collections.abc import Iterable

from gangline.api.failure import DEVICE_OUT_OF_MEMORY
from gangline.api.jobs.training_facts import DeviceShortageFacts
from gangline.elastic.protocol.messages import FailureReport, NodeReport, Tuning

_MAX_MODEL = 128


class ShortageTable:
    """The last shortage of each device model and micro-batch."""

    def __init__(self, earlier: Iterable[DeviceShortageFacts] = ()) -> None:
        """Begin with those that an earlier master has published."""
        self._found = {(each.device_model, each.micro_batch): each for each in earlier}
        self.observed = 0
        """Number of shortages that were added."""

    def observe(
        self,
        failure: FailureReport,
        report: NodeReport | None,
        tuning: Tuning | None,
        wall_ms: int,
    ) -> None:
        """Add a failure, unless it had another cause or the micro-batch is not known.

        Args:
            failure: what the agent reported.
            report: the last report of its node.
            tuning: the tuning of the job.
            wall_ms: milliseconds since 1970.
        """
        if failure.cause != DEVICE_OUT_OF_MEMORY or report is None or not report.device_model:
            return
        micro_batch = _micro_batch(report, tuning)
        if not micro_batch:
            return
        model = report.device_model[:_MAX_MODEL]
        self._found.pop((model, micro_batch), None)
        self._found[model, micro_batch] = DeviceShortageFacts(
            device_model=model, micro_batch=micro_batch, at=wall_ms
        )
        self.observed += 1

    def facts(self) -> list[DeviceShortageFacts]:
        """Return all shortages, the latest last."""
        return [*self._found.values()]


def _micro_batch(report: NodeReport, tuning: Tuning | None) -> int | None:
    """Return the tuned micro-batch if the node has applied it: its first step can fail."""
    if tuning is not None and report.tunes_batch and report.tuning_version == tuning.version:
        tuned = tuning.devices.get(report.device_model, tuning.dataloader).batch_size
        return tuned or report.batch_size
    return report.batch_size
