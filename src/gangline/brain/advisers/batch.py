"""Batches and data loading: loader processes, the micro-batch, the global batch.

*Loader*: if steps wait for records, half as many loader processes more. *Micro-batch*: with the
global batch held, the next larger divisor of a rank's share, if the memory of the device suffices
by a line through two measured micro-batches; never a doubling without measurements. *Global batch*:
only where the noise of the gradients is known, the job names a largest batch and a rule for the
learning rate; it shrinks again, down to that of the user, where the noise has fallen. Each device
model gets a configuration of its own.
"""

import math
from collections.abc import Sequence

import numpy as np

from gangline.api.jobs.training_facts import GOOD, SegmentFacts
from gangline.brain.advisers.advice import Advice, Choice, Confidence, What, because
from gangline.brain.advisers.memory import role_size
from gangline.brain.advisers.view import AdviserView, DevicePeak
from gangline.brain.advisers.workers import present_segment
from gangline.brain.models.goodput import GoodputModel, noise_scale
from gangline.brain.models.throughput import Configuration, ThroughputModel

DATA_SHARE = 0.10
LOADER_GROWTH = 1.5
FREE_SHARE = 0.15
"""Share of the device's memory that must be free before a larger micro-batch is considered."""
MOST_USED = 0.92
BATCH_GAIN = 0.10
_RECENT = 3


def advise_batch(view: AdviserView, model: ThroughputModel | None) -> list[Advice]:
    """Advise loader processes, micro-batch and global batch, where enough is known."""
    return [
        *_advise_loader(view),
        *_advise_micro_batch(view, model),
        *_advise_global_batch(view, model),
    ]


def _good(view: AdviserView) -> list[SegmentFacts]:
    return [segment for segment in view.run.segments if segment.quality == GOOD]


def _advise_loader(view: AdviserView) -> list[Advice]:
    recent = _good(view)[-_RECENT:]
    was = view.last_segment.loader_workers if view.last_segment else None
    shares = [s.data_seconds / s.step_seconds.mean for s in recent if s.data_seconds is not None]
    if was is None or was < 0 or len(shares) < _RECENT:
        return []
    share = min(shares)
    node_procs = max(recent[-1].procs // recent[-1].nodes, 1)
    size = role_size(view.run.job, "worker")
    if share <= DATA_SHARE or size is None or size.cpu_millis is None:
        return []
    most = size.cpu_millis // 1000 // node_procs
    value = min(max(math.ceil(was * LOADER_GROWTH), was + 1), most)
    if value <= was:
        return []
    # With enough processes, loading takes less time in proportion to their number.
    faster = 1 / (1 - share * (1 - was / value)) - 1
    return [
        Advice(
            what=What.LOADER_WORKERS,
            role="worker",
            was=was,
            value=value,
            low=was,
            high=most,
            reason=because("StepsWaitForData", share=share, segments=len(shares), most=most),
            evidence=(view.run.job.uid,),
            gain=faster,
            gain_low=0.0,
        )
    ]


def _advise_micro_batch(view: AdviserView, model: ThroughputModel | None) -> list[Advice]:
    present = present_segment(view.run)
    if present is None or present.global_batch is None:
        return []
    by_model: dict[str, list[DevicePeak]] = {}
    for peak in view.device_peaks:
        by_model.setdefault(peak.gpu_model, []).append(peak)
    advice = []
    for name, peaks in by_model.items():
        target = name if len(by_model) > 1 else ""
        advice.append(
            _after_oom(present, peaks, target) or _next_micro_batch(present, peaks, target, model)
        )
    return [item for item in advice if item is not None]


def _after_oom(present: SegmentFacts, peaks: Sequence[DevicePeak], target: str) -> Advice | None:
    """The last micro-batch ran out of device memory: back to the largest that did not.

    If no smaller one was run, the largest divisor of the share that is at most half of it: fixed
    parts of the memory, which are not known then, make less of a difference than that.
    """
    last = peaks[-1]
    is_smaller = (present.micro_batch or 0) < last.micro_batch
    runs_with_less = is_smaller and last.at_ms is not None and present.until > last.at_ms
    if not last.oom or runs_with_less:
        return None
    failed = min(peak.micro_batch for peak in peaks if peak.oom)
    good = [p.micro_batch for p in peaks if not p.oom and p.micro_batch < failed]
    tried = [m for m in range(1, failed // 2 + 1) if _share(present) % m == 0]
    if not good and not tried:
        return None
    value = max(good or tried)
    return Advice(
        what=What.MICRO_BATCH,
        role="worker",
        target=target,
        was=last.micro_batch,
        value=value,
        low=value,
        high=value,
        reason=because("DeviceOutOfMemory", device=last.gpu_model, batch=last.micro_batch),
        confidence=Confidence.HIGH if good else Confidence.LOW,
        extrapolated=not good,
        urgent=True,
    )


def _share(present: SegmentFacts) -> int:
    """Records of a rank in a step."""
    return math.ceil((present.global_batch or 0) / present.procs)


def _next_micro_batch(
    present: SegmentFacts, peaks: Sequence[DevicePeak], target: str, model: ThroughputModel | None
) -> Advice | None:
    good = [peak for peak in peaks if not peak.oom]
    if len({peak.micro_batch for peak in good}) < 2:
        return None
    now, share = good[-1], _share(present)
    if now.peak_bytes > (1 - FREE_SHARE) * now.memory_bytes:
        return None
    larger = [m for m in range(now.micro_batch + 1, share + 1) if share % m == 0]
    failed = min((peak.micro_batch for peak in peaks if peak.oom), default=None)
    if not larger or (failed is not None and larger[0] >= failed):
        return None
    value = larger[0]
    points = np.array([(peak.micro_batch, peak.peak_bytes) for peak in good], float)
    slope, base = np.polyfit(points[:, 0], points[:, 1], 1)
    predicted = float(base + max(slope, 0.0) * value) / now.memory_bytes
    if predicted > MOST_USED:
        return None
    gain = None
    if model is not None:
        # Fewer, larger micro-steps for the same share.
        here, there = (
            Configuration(present.nodes, present.procs, float(micro), math.ceil(share / micro))
            for micro in (now.micro_batch, value)
        )
        middle, low, high = model.speedups(here, [there])[0].tolist()
        gain = Choice(value=value, goodput=middle, low=low, high=high)
    return Advice(
        what=What.MICRO_BATCH,
        role="worker",
        target=target,
        was=now.micro_batch,
        value=value,
        low=now.micro_batch,
        high=value,
        reason=because(
            "DeviceMemoryFree",
            device=now.gpu_model,
            used=now.peak_bytes / now.memory_bytes,
            predicted=predicted,
            memory=now.memory_bytes,
            share=share,
        ),
        gain=gain.goodput - 1 if gain else None,
        gain_low=gain.low - 1 if gain else None,
        choices=(gain,) if gain else (),
        extrapolated=True,
    )


def _advise_global_batch(view: AdviserView, model: ThroughputModel | None) -> list[Advice]:
    present = present_segment(view.run)
    wishes = view.run.job.wishes
    noise = noise_scale(view.run.segments)
    if model is None or present is None or noise is None:
        return []
    batches = [segment.global_batch for segment in _good(view) if segment.global_batch]
    micro, most, was = present.micro_batch, wishes.max_global_batch, present.global_batch
    if not batches or was is None or micro is None or not most or not wishes.learning_rate_rule:
        return []
    nodes, procs = present.nodes, present.procs
    now = Configuration(nodes, procs, float(micro), present.accumulation or 1)

    def best_at(phi: float) -> tuple[Configuration, tuple[float, float, float]] | None:
        goodput = GoodputModel(model, float(batches[0]), phi)
        best = goodput.best_batch(nodes, procs, float(most), float(micro))
        return (best, goodput.gain(best, now)) if best else None

    likely, least = best_at(noise.phi), best_at(noise.low)
    if likely is None or least is None:
        return []
    best, (gain, low, high) = likely
    value = round(best.global_batch)
    if gain < BATCH_GAIN or value == was:
        return []
    low = min(low, least[1][1])
    grows = value > was
    return [
        Advice(
            what=What.GLOBAL_BATCH,
            was=was,
            value=value,
            low=min(was, value),
            high=most if grows else was,
            reason=because(
                "NoiseAllowsLargerBatch" if grows else "NoiseNeedsSmallerBatch",
                noise=noise.phi,
                goodput=gain,
                goodput_low=low,
                rule=wishes.learning_rate_rule,
                most=most,
            ),
            evidence=(view.run.job.uid,),
            gain=gain,
            gain_low=low,
            extrapolated=model.extrapolated(best) or model.extrapolated(now),
            choices=(Choice(value=value, goodput=1 + gain, low=1 + low, high=1 + high),),
        )
    ]
