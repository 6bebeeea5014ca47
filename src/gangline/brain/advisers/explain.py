"""Advice and reasons as sentences.

A sentence begins with what is advised, as in ``memory of worker: 11.3Gi (10.2Gi to 12.6Gi) instead
of 32Gi.``; the sentence of the reason follows. Numbers have three significant digits. ``published``
rounds all numbers of an advice as its sentence shows them, so what is published as JSON and what
people read are equal.

In a template ``{key:kind}`` is replaced by the argument of that name; kinds are those of
``written``, among them ``n NOUN`` for a count with its noun. A part in brackets appears if its
arguments are there, one that begins with a plus sign only if they are positive.
"""

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from gangline.api.figures import plain_number
from gangline.brain.advisers.advice import Advice, Arguments, Reason, Unit, What, because

_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_LEVELS = (
    "same specification",
    "same family",
    "same family but for command or owner",
    "same image",
    "nearest model",
)
"""Levels of similarity in words, from 0 on."""
_UNITS: dict[str, tuple[tuple[str, float, float], ...]] = {
    "bytes": tuple(
        (name, 1024.0**power, 1000.0 if name != "Pi" else math.inf)
        for power, name in enumerate(("B", "Ki", "Mi", "Gi", "Ti", "Pi"))
    ),
    "millicores": ((" cores", 1000.0, math.inf),),
    "seconds": (
        (" s", 1.0, 120.0),
        (" min", 60.0, 120.0),
        (" h", 3600.0, 48.0),
        (" d", 86400.0, math.inf),
    ),
    "percent": ((" %", 0.01, math.inf),),
    "points": ((" %", 1.0, math.inf),),
    "large": (
        ("", 1.0, 1e6),
        (" million", 1e6, 1000.0),
        (" billion", 1e9, 1000.0),
        (" trillion", 1e12, math.inf),
    ),
    "number": (("", 1.0, math.inf),),
}
"""Kinds of quantities: names of units, their sizes, and the value from which the next is used."""
_TIMES = {
    "day": ("{0:%-d} {month} {0:%Y}", 86_400_000),
    "time": ("{0:%-d} {month} {0:%Y} at {0:%H:%M} UTC", 60_000),
}
"""Kinds of times in milliseconds: how they are written, and the unit to which they are rounded."""


def written(kind: str, value: Any) -> tuple[str, Any]:
    """Return the text of a value, and the value that the text shows.

    One at the edge between two units is rounded until it is stable.

    Raises:
        KeyError: there is no such kind.
    """
    text, shown = _written_once(kind, value)
    for _ in range(3):
        again, shown = _written_once(kind, shown)
        if again == text:
            break
        text = again
    return text, shown


def _written_once(kind: str, value: Any) -> tuple[str, Any]:
    if kind == "name":
        return str(value), str(value)
    if kind in _TIMES:
        form, unit_ms = _TIMES[kind]
        rounded_ms = int(value) // unit_ms * unit_ms
        at = _EPOCH + timedelta(milliseconds=rounded_ms)
        return form.format(at, month=_MONTHS[at.month - 1]), rounded_ms
    if kind in _UNITS:
        for name, size, limit in _UNITS[kind]:
            digits = plain_number(value / size, 3)
            if abs(float(digits)) < limit:
                return f"{digits}{name}", float(digits) * size
    count = round(value)
    if kind == "level":
        level = min(max(count, 0), len(_LEVELS) - 1)
        return _LEVELS[level], level
    if kind == "count":
        return str(count), count
    if not kind.startswith("n "):
        raise KeyError(kind)
    return f"{count} {kind.removeprefix('n ')}{'' if count == 1 else 's'}", count


_STEP = "Now a step takes {step:seconds}, the mean of {segments:n segment}. "
_WORTH = (
    "An added worker must gain {floor:percent} of an average one"
    "[; from here to {next:n worker} each gains {next_gain:percent}]."
)
_OF_FAIR = (
    "with {devices:n device} goodput is {speedup:number} times that of the fair share of "
    "{fair:n device}. The price of a device is {price:percent}."
)
_RULE = (
    "{goodput_low:percent}. The script must follow the rule {rule:name} for the learning rate. "
    "The job allows at most {most:n record}."
)
_SLOW_RANK = (
    "Rank {rank:count} on node {node:name} is {slower:percent} slower than the median of "
    "{ranks:n rank}, "
)
_KILLS = (
    "Runs that ran out of memory: {ooms:count}.[+ Saves {saved_bytes:bytes} for {replicas:n pod}.]"
)

TEMPLATES: dict[str, str] = {
    # Memory and CPU.
    "HighestPeak": (
        "The highest peak of the last {runs:n run} of {stem:name} ({first_ms:day} to "
        "{last_ms:day}, {level:level}) was {peak_bytes:bytes}, in rank "
        "{peak_rank:count} of {peak_run:name}; {margin_percent:points} are added. " + _KILLS
    ),
    "UsualPeak": (
        "{runs:n run} of {stem:name} ({first_ms:day} to {last_ms:day}, {level:level}) "
        "usually needed up to {usual_bytes:bytes}, to which {margin_percent:points} are added; a "
        "single peak of {highest_bytes:bytes} has faded. " + _KILLS
    ),
    "OutOfMemory": (
        "Rank {rank:count} ran out of memory at {limit_bytes:bytes}: {kills:n kill} of "
        "{ranks:n rank} in {runs:n run}. What it needs is not known, so 20 % are added."
    ),
    "LowerBound": (
        "No similar run has succeeded; {runs:n run} that failed or did not end used up to "
        "{peak_bytes:bytes}, and {margin_percent:points} are added."
    ),
    "NotLowered": (
        "{runs:n run} ({level:level}) used less[: {estimate_bytes:bytes} would suffice]"
        "[: {estimate_millis:millicores} would suffice]. A request is lowered only if the same job "
        "ran before, and as large; the obstacle is {because:name}."
    ),
    "CpuUse": (
        "In {runs:n run} ({level:level}) a rank used at most {p95_millis:millicores} in "
        "95 % of the time; {margin_percent:points} are added."
        "[+ Saves {saved_millis:millicores} for {replicas:n pod}.]"
    ),
    "LoaderStarved": (
        "{data_percent:points} of a step is waiting for records, and the CPU is used up to "
        "{p95_millis:millicores} in {runs:n run}."
    ),
    "RequestBelowNeed": (
        "The request is {request_bytes:bytes}, and similar runs needed {need_bytes:bytes}; "
        "{ooms:count} of {runs:n run} ran out of memory."
    ),
    "LimitTooLow": (
        "{kills:n kill} in {days:n day} and {runs:n run} at {limit_bytes:bytes}: the limit is too "
        "low, at least {need_bytes:bytes} are needed."
    ),
    "LargestNodeTooSmall": (
        "Killed {kills:n time} at up to {limit_bytes:bytes}, and the largest node has "
        "{node_bytes:bytes}. More memory is no remedy: use a smaller batch or more shards; see "
        "gangline plan."
    ),
    "GrowingMemory": (
        "Memory of rank {rank:count} grows by {bytes_per_hour:bytes} an hour, from "
        "{used_bytes:bytes}, and reaches its limit of {limit_bytes:bytes} on {runs_out_ms:time}, "
        "in {seconds:seconds}; the job needs about {needed_bytes:bytes} until its end."
    ),
    # Start values.
    "BestGoodput": (
        "By the steps of {runs:n run} ({level:level}) this trains "
        "{gain_percent:points} faster, {samples_per_second:number} records a second; the last "
        "workers add {marginal_percent:points} of an average one. The price of a device is "
        "{price:percent}."
    ),
    "KeptCount": (
        "The last {runs:n run} ({level:level}) ended with {fewest:count} to "
        "{most:n worker}, half of them with this number or fewer."
    ),
    "SizingPrior": (
        "Nothing similar ran yet. A model (reported) of {parameters:large} parameters keeps "
        "{bytes_per_parameter:number} bytes of each, {copies:n time}."
    ),
    # Workers.
    "MoreWorkersGain": (
        "The model of step times, fitted to sizes that were run, predicts {goodput:percent} more "
        "goodput ({goodput_low:percent} to {goodput_high:percent}). " + _STEP + _WORTH
    ),
    "MoreWorkersExtrapolated": (
        "No run had this size. The model of step times predicts {goodput:percent} more goodput "
        "({goodput_low:percent} to {goodput_high:percent}). " + _STEP + _WORTH
    ),
    "LastWorkersGainLittle": (
        "The last workers gain little: without them goodput changes by {goodput:percent} "
        "({goodput_low:percent} to {goodput_high:percent}). " + _STEP + "A worker must gain "
        "{floor:percent} of an average one"
        "[; from there to {next:n worker} each gains {next_gain:percent}]."
    ),
    "NeverTried": (
        "One trial to learn how the job scales: no run had this size, and goodput could change by "
        "{goodput_low:percent} to {goodput_high:percent}, most likely by {goodput:percent}. "
        + _STEP
        + _WORTH
    ),
    "SpareDevices": "The cluster has spare devices: " + _OF_FAIR,
    "OthersGainMore": "Other jobs gain more by these devices: " + _OF_FAIR,
    "GiveBack": (
        "{gang:name} waits for {needed:n device} and has a right to start. Giving back "
        "{devices:n device} costs this job {loss:percent} of its goodput, the least of all jobs."
    ),
    # Batches and data loading.
    "StepsWaitForData": (
        "Steps wait for records {share:percent} of their time, at least, in the last "
        "{segments:n segment}. CPU and memory suffice for at most {most:count} of each rank."
    ),
    "DeviceMemoryFree": (
        "Peak memory is {used:percent} of the {memory:bytes} of {device:name}. A line through "
        "measured micro-batches predicts {predicted:percent}. It divides the share of "
        "{share:n record} of a rank."
    ),
    "DeviceOutOfMemory": "A rank on {device:name} ran out of device memory with {batch:n record}.",
    "NoiseAllowsLargerBatch": (
        "The noise scale of the gradients is {noise:n record}, so larger batches lose little: "
        "{goodput:percent} more goodput, at least " + _RULE
    ),
    "NoiseNeedsSmallerBatch": (
        "The noise scale of the gradients is {noise:n record}, so records of the present batch are "
        "worth less: {goodput:percent} more goodput with a smaller one, at least " + _RULE
    ),
    # Checkpoints.
    "SavesAndFailures": (
        "A save stops training for {save:seconds}, and a failure is expected every "
        "{between_failures:seconds}, from {failures:n observed failure}. Saves and repeated steps "
        "then cost {lost:percent} of the time instead of {lost_was:percent}."
    ),
    # Slow ranks.
    "SlowRank": (
        _SLOW_RANK + "for minutes. A node check between it and two good peers shows whether the "
        "node is the cause."
    ),
    "SlowRankConfirmed": (
        _SLOW_RANK + "and a node check found the node slow. Its pod should move to another node."
    ),
    "SlowRankGoodNode": (
        _SLOW_RANK + "but a node check found the node good: the rank has more work, or slower "
        "records."
    ),
    "SlowGroup": (
        "{slow:count} of {ranks:n rank} are slower than the others at one time. So many point to "
        "the network or the data, and to no node."
    ),
    "SlowNode": (
        "Node {node:name} was {slower:percent} slower than the median in {jobs:n job}. This job "
        "has too few ranks to compare; a node check can."
    ),
    # Parameter servers.
    "SkewedServer": (
        "Parameter server {rank:count} on node {node:name} uses {used:percent} of its CPU, the "
        "others {others:percent} on average. Moving this one, with more CPU, suffices."
        "[ It needs {wanted:millicores}; beside its memory a node has at most {free:millicores} "
        "free ({best:name}).]"
    ),
    "NoNodeForServer": (
        "Parameter server {rank:count} on node {node:name} uses {used:percent} of its CPU and "
        "needs {wanted:millicores}. It cannot move: beside its memory a node has at most "
        "{free:millicores} free ({best:name})."
    ),
    "HotServers": (
        "Parameter servers use {used:percent} of their CPU, evenly, and move to more.[ They need "
        "{wanted:millicores} each; nodes have {free:millicores} free for each.]"
    ),
    "HotServersFewerWorkers": (
        "Parameter servers use {used:percent} of their CPU, evenly[, and need {wanted:millicores} "
        "each; nodes have {free:millicores} free for each]. With fewer workers they use "
        "{target:percent}."
    ),
    "MoreServedWorkers": (
        "Parameter servers use at most {used:percent} of their CPU, and {rate:number} steps are "
        "made in a second. The throughput of {sizes:n size} that ran predicts {goodput:percent} "
        "more ({goodput_low:percent} to {goodput_high:percent}); servers then use {then:percent}."
    ),
    "ServerMemoryGrows": (
        "Memory of parameter server {rank:count} grows by {hourly:bytes} an hour, and reaches its "
        "limit in {left:seconds}; the rest of the job takes {rest:seconds}."
    ),
    "IdleServers": (
        "Parameter servers used at most {used:percent} of their CPU for an hour. Smaller ones "
        "suffice from their next move on."
    ),
    # Why advice is held.
    "PolicyForbids": "The policy of the cluster allows {mode:name} at most.",
    "JobForbids": "The job allows {mode:name} at most (gangline.dev/brain, optimizeMode).",
    "DryRun": "The Brain runs with --dry-run: {mode:name} at most.",
    "NotTunable": "The running program does not read tuning of {field:name}.",
    "NothingToSet": "This is a warning: there is nothing to set.",
    "FieldNotAllowed": "Policy or job do not allow a change of {field:name}.",
    "FieldNotNamed": "The job does not name {field:name} in gangline.dev/brain-may.",
    "ByHand": "Nothing sets {field:name} of a running job: it is advice for its owner.",
    "KindNotElastic": "Only an ElasticJob can be changed while it runs, not a {kind:name}.",
    "NotLeader": "Another Brain is the leader.",
    "ClockWrong": "The clock differs from that of the API server, or could not be compared.",
    "DatabaseDown": "The database of the history cannot be reached.",
    "NoSegments": "The job has not reported a closed segment yet.",
    "SegmentsOld": "The last closed segment of the job is {age:seconds} old.",
    "TooFewSegments": "Of the present settings {count:n segment} are known; {needed:count} needed.",
    "NotStable": "Advised {count:n time} in succession; {needed:count} and a pause are needed.",
    "AtLimit": "A limit ({limit:name}) leaves no other value.",
    "NoCapacity": (
        "The scheduler has nodes for at most {workers:n worker} of it now[: {why:name}]."
    ),
    "GainUnknown": "The gain is not known.",
    "GainTooSmall": "The gain is too small: {gain:percent}, at least {low:percent}.",
    "ChangeTooSmall": "The change is too small: {change:percent}.",
    "ProbeMade": "The one trial to learn was made.",
    "ProbeTooLate": "A trial to learn is made in the first hour of a job only.",
    "RestUnknown": "The rest of the job's time is not known.",
    "NotWorthIt": "Not worth it: it saves {saved:seconds} and costs {cost:seconds}.",
    "CoolDown": "The job was changed a short time ago; {left:seconds} of the pause are left.",
    "JobActionsSpent": "The job had {count:n change} in 24 hours.",
    "JobTimeSpent": "Changes have cost {share:percent} of the job's time.",
    "ClusterBusy": "{count:n resize} of the cluster are under way.",
    "ClusterActionsSpent": "The cluster had {count:n resize} in the last hour.",
    "ClusterRestarting": "{count:n device} of the cluster restart now.",
    "PersonActed": "A person changed this field; {left:seconds} of the hour after it are left.",
    "RolledBackBefore": "This was rolled back in the family; not again in {left:seconds}.",
    "NothingToWrite": (
        "The job has nothing that this change can be written to; tried again in {left:seconds}."
    ),
    "WrittenLater": "The API server did not take the change; it is written as soon as it does.",
    "NotRecorded": "The history did not take the change, so that it was not made.",
    "PlanOpen": "A ScalePlan of the job is not finished.",
    "TrialPending": "The trial of a change is not finished.",
    "Failing": "The job is failing.",
    "AlreadySet": "The last change has set this value already.",
    "ChangeNotSeen": "The facts are from before the last change of this field.",
    # How a trial ended.
    "TrialOver": "The trial is over.",
    "TrialOvertaken": "Another change came before the trial ended.",
    "TrialOutOfMemory": "A rank ran out of memory after the change.",
    "TrialNoWorld": "After the change the world did not form in time.",
    "TrialNotMeasured": "No goodput could be compared.",
    "TrialWorse": "Goodput changed by {measured:percent}[; predicted was {predicted:percent}].",
    "TrialNotWorthPrice": (
        "Goodput changed by only {measured:percent}[; predicted was {predicted:percent}]: others "
        "gain more with the devices."
    ),
    "TrialAsPredicted": (
        "Goodput changed by {measured:percent}, as predicted[ ({predicted:percent})]."
    ),
    "TrialUnclear": (
        "Goodput changed by {measured:percent}[ where {predicted:percent} was predicted], which is "
        "not worse, but no more is certain."
    ),
    "TrialWorseLater": (
        "In the hour after its trial goodput changed by {measured:percent}"
        "[ where {predicted:percent} was predicted]."
    ),
    "RollBack": "The change is taken back.",
}
"""The template of each code."""


_TOKEN = re.compile(r"\{(\w+):([^}]+)\}|\[(\+?[^\]]*)\]")
_SUBJECTS = {
    What.CPU: "CPU",
    What.MICRO_BATCH: "micro-batch",
    What.LOADER_WORKERS: "data loader processes",
    What.PS_COUNT: "number of servers",
    What.PS_CPU: "server CPU",
    What.PS_MEMORY: "server memory",
}
"""Names of fields in sentences, where they differ from those of the fields."""


class PublishedAdvice(NamedTuple):
    """Advice with its numbers as its sentence shows them, so that JSON and sentence are equal."""

    advice: Advice
    sentence: str


def published(advice: Advice) -> PublishedAdvice:
    """Return advice as users see it.

    Raises:
        KeyError: the code of its reason has no sentence, or an argument is missing.
    """
    head = _SUBJECTS.get(advice.what, advice.what.replace("_", " "))
    if advice.role:
        head += f" of {advice.role}"
    if advice.rank is not None:
        head += f" rank {advice.rank}"
    # The target of a warning is the code of its reason, which the sentence shows.
    is_implied = advice.what is What.WARNING and advice.target == advice.reason.code
    if advice.target and not is_implied:
        head += f" on {advice.target}"
    kind = "number" if advice.unit is Unit.COUNT else str(advice.unit)
    shown: dict[str, Any] = dict.fromkeys(("was", "value", "low", "high"))

    def text(name: str) -> str:
        value, shown[name] = written(kind, getattr(advice, name))
        return value

    if advice.value is not None:
        head += f": {text('value')}"
        if advice.low is not None and advice.high is not None:
            head += f" ({text('low')} to {text('high')})"
        if advice.was is not None:
            head += f" instead of {text('was')}"
    reason, why = published_reason(advice.reason)
    advice = msgspec.structs.replace(advice, **shown, reason=reason)
    return PublishedAdvice(advice, f"{head}. {why}")


def published_reason(reason: Reason) -> tuple[Reason, str]:
    """Return a reason with its arguments as its sentence shows them, and the sentence.

    Raises:
        KeyError: the code has no sentence, or an argument is missing.
    """
    shown: Arguments = {}

    def replace(token: re.Match[str]) -> str:
        key, kind, group = token.groups()
        if group is not None:
            is_shown = _has_all(group, reason.arguments)
            return _TOKEN.sub(replace, group.removeprefix("+")) if is_shown else ""
        text, shown[key] = written(kind, reason.arguments[key])
        return text

    text = _TOKEN.sub(replace, TEMPLATES[reason.code])
    return because(reason.code, **shown), text


def _has_all(group: str, arguments: Arguments) -> bool:
    keys = [key for key, _, _ in _TOKEN.findall(group)]
    if any(key not in arguments for key in keys):
        return False
    numbers = [value for key in keys if isinstance(value := arguments[key], int | float)]
    return not group.startswith("+") or all(number > 0 for number in numbers)
