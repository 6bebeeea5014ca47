"""An explanation of a pending gang as a tree of text: queue, expected start, nodes, unmet requests.

``scheduler_settings`` reads the settings for which a command computes it.
"""

import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.render.output import is_terminal, terminal_width

if TYPE_CHECKING:
    from gangline.kube.client.client import ApiClient
    from gangline.scheduler.forecast import ExpectedStart
    from gangline.scheduler.reporting.explain import Explanation, PodRequirement, QueueUsage
    from gangline.scheduler.settings import SchedulerSettings

MAX_NAMES = 6
"""Limit of names in a list; the others are counted."""
MIN_WIDTH = 40
"""Texts are not broken into narrower lines, however narrow the terminal is."""


async def scheduler_settings(client: "ApiClient", path: Path | None) -> "SchedulerSettings":
    """Return the scheduler's settings, from a file or from its ConfigMap if there is one."""
    from gangline.scheduler.reporting.replay import read_deployed_settings
    from gangline.scheduler.settings import SchedulerSettings
    from gangline.scheduler.volcano_config import ConfigurationError, read_file

    try:
        if path is None:
            return await read_deployed_settings(client)
        return read_file(path).apply_to(SchedulerSettings())
    except ConfigurationError as error:
        where = "the scheduler's ConfigMap" if path is None else "--scheduler-config"
        raise CommandError(f"{where}: {error}", code=ExitCode.USAGE) from error


def format_explanation(explained: "Explanation") -> str:
    """Return why a gang or pod is pending, or where it runs."""
    because = f" ({explained.reason})" if explained.reason else ""
    lines = [f"{explained.kind} {explained.name} {explained.state}{because}"]
    if explained.message:
        lines += _wrapped(explained.message, "  ", "  ", terminal_width() - 2)
    sections = [
        _queues(explained.queues),
        _pods_by_node("Pods on nodes", explained.placed),
        _pods_by_node("Starting", explained.starting),
        _pods_by_node("Reserved nodes", explained.planned),
        *(_need(need, explained.minimum) for need in explained.needs),
    ]
    if explained.expected is not None:
        sections.insert(0, _expected(explained.expected))
    if explained.evicted_for_it:
        sections.append(["Evicted for it: " + _join_names(explained.evicted_for_it)])
    for section in sections:
        lines += _branch(section)
    return "\n".join(lines)


def _branch(section: Sequence[str]) -> Iterable[str]:
    if section:
        width = terminal_width() if is_terminal() else sys.maxsize
        yield from _wrapped(section[0], "├─ ", "│  ", width)
        for line in section[1:]:
            yield from _wrapped(line, "│    ", "│      ", width)


def _wrapped(text: str, first: str, further: str, width: int) -> list[str]:
    """Break a text between words."""
    return textwrap.wrap(
        text,
        max(MIN_WIDTH, width),
        initial_indent=first,
        subsequent_indent=further,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _expected(expected: "ExpectedStart") -> list[str]:
    """Return the place in line and the expected start."""
    lines = [
        f"Expected start: {expected.start.text}",
        f"place {expected.place} in queue {expected.queue!r}",
    ]
    if expected.ahead:
        more = expected.place - 1 - len(expected.ahead)
        names = ", ".join(expected.ahead) + (f" and {more} more" if more > 0 else "")
        lines.append(f"ahead of it: {names}")
    lines.append(
        f"{expected.start.samples} simulations; run times are known of "
        f"{expected.known_run_times} of {expected.run_times} gangs"
    )
    lines += [f"sooner {option.change}: {option.start.text}" for option in expected.sooner]
    return lines


def _queues(queues: "Sequence[QueueUsage]") -> list[str]:
    if not queues:
        return []
    lines = ["Queue " + ", part of ".join(queue.name for queue in queues)]
    for queue in queues:
        most = f"; at most {queue.most}" if queue.most else ""
        lines.append(
            f"{queue.name}: uses {queue.used} ({queue.share:.0%} of its fair share: "
            f"{queue.entitled}); with pending pods {queue.requested}{most}"
        )
    return lines


def _pods_by_node(title: str, nodes: Mapping[str, str]) -> list[str]:
    if not nodes:
        return []
    by_node: dict[str, list[str]] = {}
    for pod, node in sorted(nodes.items()):
        by_node.setdefault(node, []).append(pod.partition("/")[2])
    lines = [f"{node}: {_join_names(pods)}" for node, pods in sorted(by_node.items())]
    return [f"{title} ({len(nodes)})", *_truncated(lines)]


def _need(need: "PodRequirement", minimum: int) -> list[str]:
    what = f"{need.role} pod" if need.role else "pod"
    together = f", {minimum} of the gang together" if minimum > 1 else ""
    title = f"Pending: {len(need.pods)} {what}(s) with {need.asked} each{together}"
    lines = [title]
    for node_class in need.nodes:
        free = f" (at most free: {node_class.most_free})" if node_class.most_free else ""
        lines.append(
            f"{len(node_class.nodes)} node(s): {node_class.why}{free}: "
            f"{_join_names(node_class.nodes)}"
        )
    return lines


def _truncated(lines: Sequence[str]) -> list[str]:
    left = len(lines) - MAX_NAMES
    return [*lines[:MAX_NAMES], f"and {left} more"] if left > 0 else list(lines)


def _join_names(names: Sequence[str]) -> str:
    left = len(names) - MAX_NAMES
    shown = ", ".join(names[:MAX_NAMES])
    return f"{shown} and {left} more" if left > 0 else shown
