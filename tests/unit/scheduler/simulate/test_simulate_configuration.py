"""Simulation with a scheduler configuration: its effects, and its errors."""

from pathlib import Path

import pytest

from gangline.cli.main import run

TRACE = """arrival,duration,size,cpu,priority,name
0,100,1,4,0,low
10,10,1,4,5,high
"""


@pytest.fixture
def simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Simulate two jobs of which one fits at a time; return the output."""
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE)
    described = tmp_path / "cluster.yaml"
    described.write_text("nodes: [{cpu: 4}]")

    def simulate(configuration: str | bytes | None, *more: str) -> tuple[int, str, str]:
        command = ["simulate", str(trace), "--cluster", str(described), *more]
        if configuration is not None:
            written = tmp_path / "scheduler.yaml"
            raw = configuration.encode() if isinstance(configuration, str) else configuration
            written.write_bytes(raw)
            command += ["--config", str(written)]
        code = run(command)
        return code, *capsys.readouterr()

    return simulate


def evicted(printed: str) -> str:
    (line,) = [line for line in printed.splitlines() if line.startswith("pods evicted")]
    return line.split()[-1]


def test_two_configurations_are_compared_on_one_trace(simulated) -> None:
    code, printed, errors = simulated("actions: allocate, preempt")
    assert (code, evicted(printed), errors) == (0, "1", "")
    code, printed, errors = simulated("actions: allocate")
    assert (code, evicted(printed), errors) == (0, "0", "")


def test_without_a_configuration_the_defaults_hold(simulated) -> None:
    assert evicted(simulated(None)[1]) == "1"


def test_the_seed_changes_nodes_but_no_figures_where_nodes_are_equal(simulated) -> None:
    assert simulated("{seed: 3, actions: preempt}")[1] == simulated("actions: preempt")[1]


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        pytest.param("actions: shuffle", "unknown action 'shuffle'", id="an unknown action"),
        pytest.param("seed: x", "Expected `int`", id="no seed"),
        pytest.param(b"\xff", "can't decode", id="no text"),
        pytest.param("{", "expected", id="no yaml"),
    ],
)
def test_invalid_configuration_is_refused(
    simulated, configuration: str | bytes, message: str
) -> None:
    code, printed, errors = simulated(configuration)
    assert (code, printed) == (2, "")
    assert message in errors
    assert "scheduler.yaml" in errors


def test_settings_without_effect_in_a_simulation_are_reported(simulated) -> None:
    switches = "enableHierarchy: true, enableNamespaceOrder: true, enablePreemptable: true"
    code, _, errors = simulated(
        f"tiers: [{{plugins: [{{name: drf, {switches}}}, {{name: gang, arguments: {{a: 1}}}}, "
        "{name: nodeorder, arguments: {imagelocality.weight: 1}}]}]"
    )
    assert code == 0
    for name in ("a of plugin 'gang'", "enableHierarchy", "enableNamespaceOrder", "imagelocality"):
        assert name in errors


def test_removed_options_have_no_effect_and_are_named_in_one_warning(simulated) -> None:
    text = "{actions: preempt, configurations: [{name: backfill, arguments: {%s: true}}]}"
    code, printed, warned = simulated(text % "backfill.learned", "--learned-run-times", "--check")
    assert (code, printed) == (0, simulated("actions: preempt")[1])
    (line,) = warned.splitlines()
    assert "backfill.learned" in line
    assert "--learned-run-times" in line
    assert "--check" in line
    assert simulated(None, "--learned-run-times")[2].count("--learned-run-times") == 1
