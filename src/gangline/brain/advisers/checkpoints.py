"""How often to save: the interval that loses least time, from measured costs and failures.

The interval is Daly's (J. T. Daly, "A higher order estimate of the optimum checkpoint interval for
restart dumps", FGCS 22(3), 2006, equation 37). The rate of failures is a Gamma posterior: one
failure per 30,000 GPU hours to begin with, then what was observed in the cluster and on the nodes;
the rate that this gives counts for four failures at most, so that the observations of the family,
which are added last, outweigh it.
"""

import math

from gangline.brain.advisers.advice import Advice, Confidence, Unit, What, because
from gangline.brain.advisers.view import AdviserView, Exposure
from gangline.brain.advisers.workers import present_segment
from gangline.sizing.storage import FAILURE_GPU_HOURS

PRIOR = Exposure(failures=1.0, gpu_hours=FAILURE_GPU_HOURS)
_MOST_FAILURES = 4.0
LEAST_CHANGE = 0.25
"""Relative change of the interval below which there is nothing to advise."""
LEAST_GAIN = 0.002
"""Share of the training time that must be saved."""


def daly_interval(save_s: float, between_failures_s: float) -> float:
    """Return the best seconds between two saves, each of which stops training for ``save_s``."""
    if save_s >= 2 * between_failures_s:
        return between_failures_s
    ratio = math.sqrt(save_s / (2 * between_failures_s))
    return math.sqrt(2 * save_s * between_failures_s) * (1 + ratio / 3 + ratio**2 / 9) - save_s


def posterior(*observed: Exposure, limited: tuple[Exposure, ...] = ()) -> Exposure:
    """Return shape and rate of the Gamma posterior of failures per GPU hour.

    Args:
        observed: what counts in full: the job and its family.
        limited: what gives the prior with four failures at most: the cluster and the nodes.
    """
    prior = Exposure.total((PRIOR, *limited))
    share = min(1.0, _MOST_FAILURES / prior.failures)
    weighted = Exposure(failures=share * prior.failures, gpu_hours=share * prior.gpu_hours)
    return Exposure.total((weighted, *observed))


def between_failures_s(rate: Exposure, devices: int) -> float:
    """Return the expected seconds between failures of a job on ``devices`` devices."""
    return rate.gpu_hours / rate.failures * 3600 / devices


def lost_share(interval_s: float, save_s: float, failure_s: float) -> float:
    """Return the share of time that saves and repeated steps cost, restarts not counted."""
    return save_s / interval_s + interval_s / (2 * failure_s)


def advise_checkpoints(view: AdviserView) -> list[Advice]:
    """Advise the interval between checkpoints; nothing where the cost of a save is not known."""
    last = view.last_segment
    if last is None or not last.save_seconds or not last.save_interval_seconds:
        return []
    save_s, interval_s = last.save_seconds, last.save_interval_seconds
    rate = posterior(view.exposure, limited=(view.cluster.exposure, view.node_exposure))
    failure_s = between_failures_s(rate, (present_segment(view.run) or last).procs)
    best_s = daly_interval(save_s, failure_s)
    was_lost, lost = (lost_share(seconds, save_s, failure_s) for seconds in (interval_s, best_s))
    if abs(best_s - interval_s) < LEAST_CHANGE * interval_s or was_lost - lost < LEAST_GAIN:
        return []
    # The interval follows the root of the rate, whose relative deviation is 1 / sqrt(failures).
    spread = math.exp(1.2816 / math.sqrt(rate.failures) / 2)
    observed = view.exposure.failures + view.cluster.exposure.failures
    return [
        Advice(
            what=What.CHECKPOINT_INTERVAL,
            unit=Unit.SECONDS,
            was=interval_s,
            value=best_s,
            low=best_s / spread,
            high=best_s * spread,
            reason=because(
                "SavesAndFailures",
                save=save_s,
                between_failures=failure_s,
                failures=round(observed),
                lost=lost,
                lost_was=was_lost,
            ),
            evidence=(view.run.job.uid,),
            confidence=Confidence.HIGH if observed >= 5 else Confidence.MEDIUM,
            gain=(1 - lost) / (1 - was_lost) - 1 if was_lost < 1 else None,
        )
    ]
