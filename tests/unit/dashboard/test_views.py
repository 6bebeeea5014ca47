"""View models of a recorded cluster at a fixed time: what pages show, and what they hide."""

from base64 import urlsafe_b64encode
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gangline.cli.render.jobs import job_table
from gangline.cli.render.nodes import node_table
from gangline.dashboard.rendering import coloured, plain
from gangline.dashboard.rights import POD_KIND, Scope, readable
from gangline.dashboard.views.job import (
    JobHead,
    checkpoints_view,
    goodput_view,
    job_head,
    spec_view,
    why_view,
)
from gangline.dashboard.views.jobs import PAGE_SIZE, JobFilter, jobs_view, read_filter
from gangline.dashboard.views.nodes import nodes_view
from gangline.dashboard.views.overview import diagnose_observed, overview_view
from gangline.dashboard.views.queues import queues_view
from gangline.sdk.goodput import parse_goodput
from gangline.sdk.nodes import read_nodes
from unit.dashboard.observed_state import (
    ALL,
    NOW,
    PYTORCH,
    Recorded,
    condition,
    example,
    job_manifest,
)

ONLY_DEFAULT = Scope(
    {kind: frozenset({"default"}) for kind in (readable(PYTORCH.resource), *ALL.kinds)}
)


def names(view: object) -> list[str]:
    return [row.name for row in view.rows]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        pytest.param({}, ["secret", "running", "failed", "waiting"], id="the newest first"),
        pytest.param({"phase": ("running,failed",)}, ["secret", "running", "failed"], id="phases"),
        pytest.param({"owner": ("ann",)}, ["running"], id="owner"),
        pytest.param({"q": ("gpu are",)}, ["waiting"], id="part of a reason"),
        pytest.param({"namespace": ("other",)}, ["secret"], id="namespace"),
        pytest.param({"sort": ("-age",)}, ["waiting", "failed", "running", "secret"], id="back"),
        pytest.param({"sort": ("gpus",), "phase": ("nonsense",)}, ["waiting", "running", "failed",
                     "secret"], id="unknown values are ignored"),
    ],
)  # fmt: skip
def test_list_selects_and_orders_by_its_address(
    query: dict[str, tuple[str, ...]], expected: list[str]
) -> None:
    assert names(jobs_view(example().observation(), read_filter(query))) == expected


def test_own_jobs_come_first_and_pages_continue_behind_a_row_that_is_gone() -> None:
    recorded = Recorded()
    for number in range(PAGE_SIZE + 30):
        recorded.job(f"job-{number:03}", owner="ann" if number % 50 == 7 else "", age_s=number)
    seen = recorded.observation(viewer="ann")
    first = jobs_view(seen, JobFilter())
    assert names(first)[:4] == ["job-007", "job-057", "job-107", "job-000"]
    recorded.remove(names(first)[-1])
    second = jobs_view(seen, JobFilter(after=first.next))
    assert names(second)[0] == "job-099"
    assert len(names(second)) == 30
    assert second.next == ""
    assert len(set(names(first)) & set(names(second))) == 0
    tokens = ("no token", "{}", "[1]", '[true, [["x"]]]', "[" * 4000)
    for token in ("no token", *(urlsafe_b64encode(one.encode()).decode() for one in tokens)):
        broken = jobs_view(seen, JobFilter(after=token))
        assert names(broken) == names(jobs_view(seen, JobFilter())), token


def test_viewer_sees_only_namespaces_that_may_be_read() -> None:
    seen = example().observation(ONLY_DEFAULT)
    view = jobs_view(seen, JobFilter())
    assert "secret" not in names(view)
    assert view.namespaces == ("default",)
    assert overview_view(seen).gpus is None  # nodes belong to no namespace
    shown = nodes_view(seen, [])
    cells = [cell for node in shown.domains[0].nodes for cell in node.gpus if cell.is_used]
    assert sorted(cell.job for cell in cells) == ["", "default/running", "default/running"]


def test_viewer_without_pods_sees_jobs_without_replicas() -> None:
    scope = Scope({**ALL.kinds, POD_KIND: frozenset()})
    recorded = example()
    view = jobs_view(recorded.observation(scope), JobFilter(q="running"))
    assert [(row.running, row.desired) for row in view.rows] == [(0, 2)]
    assert [
        row.running for row in jobs_view(recorded.observation(), JobFilter(q="running")).rows
    ] == [2]


def test_overview_has_the_oldest_waiting_job_the_last_failures_and_nodes_out_of_service() -> None:
    recorded = example()
    recorded.job("ancient", condition("Failed", 90_000), age_s=99_000)
    view = overview_view(recorded.observation())
    assert view.states == {"RUNNING": 2, "QUEUING": 1, "FAILED": 2}
    assert [job.row.name for job in view.waiting] == ["waiting"]
    assert view.waiting[0].expected_start == "in 2.0 h to 3.0 h"
    assert [(job.row.name, job.blame) for job in view.failed] == [("failed", "code")]
    assert view.blames == {"code": 1}
    assert [(node.name, node.reason) for node in view.nodes_out] == [("node-2", "No heartbeat.")]
    assert view.gpus is not None
    assert (view.gpus.total, view.gpus.allocated) == (8, 3)


def test_timeline_has_life_cycle_and_events_in_order() -> None:
    head = head_of("failed")
    assert [moment.what for moment in head.timeline] == ["submitted", "failed", "JobFailed"]
    assert [cell.mark for cell in head.replicas] == ["F"]


def test_a_waiting_job_has_not_started_although_it_was_accepted() -> None:
    head = head_of("waiting")
    assert head.row.started is None
    assert "started" not in [moment.what for moment in head.timeline]


def head_of(name: str) -> JobHead:
    """The head of a job's page."""
    seen = example().observation()
    entry = seen.cluster.by_key.get(("default", "pytorchjob", name))
    assert entry is not None
    return job_head(seen, seen.see(entry))


def test_terminal_and_page_show_the_same() -> None:
    recorded = example()
    seen = recorded.observation()
    jobs = [shown.job for shown in seen.jobs()]
    table = job_table(jobs, NOW, namespaces=True, wide=True)
    lines = {line.split()[1]: line for line in table.splitlines()[1:]}
    for row in jobs_view(seen, JobFilter()).rows:
        line = lines[row.name]
        assert str(row.state) in line
        assert f" {row.running}/{row.desired} " in line
        assert f" {row.requested_gpus} " in line
        assert row.queue in line
        assert row.reason in line
    nodes = node_table(read_nodes(recorded.cluster.nodes.values(), recorded.cluster.pods.values()))
    for view in nodes_view(seen, []).domains[0].nodes:
        (line,) = [line for line in nodes.splitlines() if line.startswith(view.name)]
        assert line.split()[3:6] == [
            view.status, str(len(view.gpus)), str(len(view.gpus) - view.gpus_free)
        ]  # fmt: skip
    entry = recorded.cluster.by_key.get(("default", "pytorchjob", "failed"))
    assert entry is not None
    diagnosis = diagnose_observed(seen, seen.see(entry))
    why = why_view(diagnosis)
    assert why.root is not None
    for text in (why.summary, why.root.evidence, *why.next_steps):
        assert text in repr(diagnosis)


def test_queues_are_a_tree_whose_lines_hide_what_may_not_be_read() -> None:
    recorded = example()
    usage = SimpleNamespace(used="", requested="", entitled="", most="", share=0.5)
    line = [SimpleNamespace(name=name, message="waits") for name in ("default/waiting", "other/x")]
    reports = {"vision": SimpleNamespace(usage=usage, line=line)}
    view = queues_view(recorded.observation(ONLY_DEFAULT), reports)
    assert [(queue.name, queue.depth) for queue in view.queues] == [("default", 0), ("vision", 1)]
    first, second = view.queues[1].line
    assert (first.path, first.expected_start) == (
        "/jobs/default/pytorchjob/waiting",
        "in 2.0 h to 3.0 h",
    )
    assert (second.place, second.name, second.message) == (2, "", "")


def test_nodes_are_grouped_by_their_closest_domain_and_each_gpu_is_a_cell() -> None:
    recorded = example()
    recorded.node("node-3", gpus=8)
    view = nodes_view(recorded.observation(), [("rack-1", 1, ["node-1"]), ("all", 2, ["node-1"])])
    assert [(domain.name, [node.name for node in domain.nodes]) for domain in view.domains] == [
        ("", ["node-2", "node-3"]),
        ("rack-1", ["node-1"]),
    ]
    cells = view.domains[1].nodes[0].gpus
    assert [cell.job for cell in cells] == [
        "default/running",
        "default/running",
        "other/secret",
        "",
    ]
    assert cells[0].colour == cells[1].colour
    # The node that is not ready has free GPUs, on which nothing can start.
    assert view.fits == ((1, 9), (2, 4), (4, 2), (8, 1))


ACCOUNT = parse_goodput(
    {
        "goodput": "0.75", "wallSeconds": "400", "productiveSeconds": "300", "step": "120",
        "unproductive": "restarting 40.0 s, starting up 60.0 s", "stepsPerSecond": "2",
        "checkpointStep": "100",
    }
)  # fmt: skip


def test_checkpoints_and_goodput_name_what_is_at_risk_and_where_time_went() -> None:
    assert ACCOUNT is not None
    view = checkpoints_view(ACCOUNT)
    assert (view.steps_at_risk, view.seconds_at_risk) == (20, 10.0)
    unsaved = checkpoints_view(replace(ACCOUNT, checkpoint_step=None))
    assert unsaved.steps_at_risk == 120
    parts = goodput_view(ACCOUNT, gpus=36).parts
    assert [(part.name, part.share, part.gpu_hours) for part in parts] == [
        ("productive", 0.75, 3.0),
        ("starting up", 0.15, 0.6),
        ("restarting", 0.1, 0.4),
    ]


def test_specification_masks_secrets_and_shows_the_difference_to_another_job() -> None:
    stored = job_manifest("one", workers=2)
    env = [{"name": "HF_TOKEN", "value": "s3cr3t"}, {"name": "LR", "value": "0.1"}]
    stored["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"] = [
        {"env": env}
    ]
    view = spec_view(stored, other=job_manifest("two", workers=3), other_name="default/x/two")
    assert "s3cr3t" not in view.written
    assert "'0.1'" in view.written
    assert "uid" not in view.written
    assert {"-  name: two", "+  name: one"} <= set(view.difference)


@pytest.mark.parametrize(
    ("line", "html", "text"),
    [
        pytest.param("<script>", "&lt;script&gt;", "<script>", id="markup"),
        pytest.param(
            "\x1b[1;31mred\x1b[0m <b>", '<span class="a-b a-c1">red</span> &lt;b&gt;', "red <b>",
            id="colours",
        ),
        pytest.param("\x1b]8;;http://evil\x07link\x1b]8;;\x07", "link", "link", id="hyperlink"),
        pytest.param("\x1b[2Ja\x1b[5;9Hb\x00", "ab", "ab", id="cursor and control characters"),
        pytest.param("\x1b[38;5;999mx\x1b[", "x", "x", id="colours beyond the list"),
    ],
)  # fmt: skip
def test_log_lines_keep_listed_colours_only(line: str, html: str, text: str) -> None:
    assert str(coloured(line)) == html
    assert plain(line) == text
