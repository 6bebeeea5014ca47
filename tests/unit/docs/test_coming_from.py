"""What the guides for people of other tools state about flags, fields and variables is true."""

import re
from pathlib import Path

import click
import pytest
import yaml

from gangline.cli.main import InvocationState, gangline
from gangline.elastic.launcher.flags import (
    DLROVER_FLAGS,
    TORCHRUN_FLAGS,
    FlagError,
    parse_flags,
)
from gangline.elastic.launcher.settings import build_settings
from gangline.operator.frameworks.pytorch import PyTorchFramework
from gangline.operator.frameworks.tensorflow import TensorFlowFramework
from gangline.scheduler.volcano_config import (
    ADMISSION,
    BUILT_IN,
    SCORING,
    UNSUPPORTED,
    read_configuration,
)
from unit.docs.guides import GUIDES, flags, quoted, table, text_of
from unit.operator.elastic_jobs import ElasticWorld
from unit.operator.elastic_jobs import variables as elastic_variables
from unit.operator.frameworks.test_mindspore import a_job as ms_job
from unit.operator.frameworks.test_mindspore import environment as ms_environment
from unit.operator.kubeflow_jobs import job_manifest, pod_of, read_job, variables
from unit.operator.paddle_jobs import a_job as paddle_job
from unit.operator.paddle_jobs import config_map, placed

ROOT = Path(__file__).parents[3]
DLROVER_RUN = {
    "--precheck", "--network-check", "--comm-perf-test", "--node-unit", "--auto-config",
    "--auto-tunning", "--exclude-straggler", "--save-at-breakpoint", "--accelerator",
    "--training-port", "--numa-affinity", "--membind-policy", "--ucp-device-type",
}  # fmt: skip
"""Flags that dlrover-run adds to torchrun's (``dlrover/trainer/torch/elastic_run.py``)."""
TRAINING_OPERATOR = {
    "--metrics-bind-address", "--health-probe-bind-address", "--leader-elect",
    "--leader-election-id", "--enable-scheme", "--gang-scheduler-name", "--namespace",
    "--controller-threads", "--kube-api-qps", "--kube-api-burst",
    "--pytorch-init-container-image", "--pytorch-init-container-template-file",
    "--pytorch-init-container-max-tries", "--mpi-kubectl-delivery-image",
    "--webhook-server-port", "--webhook-service-name", "--webhook-secret-name",
}  # fmt: skip
"""Flags of cmd/training-operator.v1/main.go of release 1.9."""


def test_torchrun_guide_lists_every_flag_of_the_installed_torchrun() -> None:
    run = pytest.importorskip("torch.distributed.run")
    parser = run.get_args_parser()
    installed = {
        next(name for name in action.option_strings if name.startswith("--") and "_" not in name)
        for action in parser._actions
        if action.option_strings and action.dest != "help"
    }
    listed = flags("torchrun", "Flags")
    assert installed <= set(listed)
    assert set(listed) == {f"--{flag.name}" for flag in TORCHRUN_FLAGS}


def test_dlrover_guide_lists_every_flag_of_dlrover_run() -> None:
    listed = flags("dlrover", "Flags of dlrover-run")
    assert set(listed) == DLROVER_RUN == {f"--{flag.name}" for flag in DLROVER_FLAGS}


@pytest.mark.parametrize(
    "arguments",
    [("--logs-specs", "x"), ("--start-method", "fork"), ("--rdzv-backend", "etcd"),
     ("--numa-binding", "socket"), ("--ucp-device-type", "cpu"),
     ("--numa-affinity", "--membind-policy", "bind"), ("--rdzv-conf", "store_type=file")],
    ids=" ".join,
)  # fmt: skip
def test_values_that_the_guides_exclude_are_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(FlagError):
        build_settings(parse_flags([*arguments, __file__], {}, "run"), {}, "node")


def operator_options() -> dict[str, click.Parameter]:
    command = gangline.get_command(click.Context(gangline, obj=InvocationState()), "operator")
    assert command is not None
    return {name: option for option in command.params for name in option.opts}


def test_training_operator_guide_is_right_about_every_flag() -> None:
    options, listed = operator_options(), flags("training-operator", "Flags of the operator")
    assert set(listed) == TRAINING_OPERATOR
    for flag, meaning in listed.items():
        if meaning == "refused":
            context = click.Context(gangline, obj=InvocationState())
            command = gangline.get_command(context, "operator")
            assert command is not None
            with pytest.raises(click.UsageError):
                command.main([flag, "x"], standalone_mode=False, obj=InvocationState())
            continue
        names = [flag] if meaning.startswith("the same") else quoted(meaning)
        accepted = flag if flag in options else names[0]
        assert accepted in options, flag


def test_volcano_guide_shows_a_configuration_that_is_accepted() -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", text_of("volcano"), re.DOTALL)
    configuration = read_configuration(shown)
    assert not configuration.preempt
    assert not configuration.reclaim


def test_volcano_guide_names_every_plug_in() -> None:
    rows = dict(table("volcano", "Configuration file"))
    named = {name: meaning for names, meaning in rows.items() for name in quoted(names)}
    assert set(named) == BUILT_IN | ADMISSION | set(SCORING) | set(UNSUPPORTED)
    assert {name for name, meaning in named.items() if "refused" in meaning} == set(UNSUPPORTED)


def test_paddle_guide_names_variables_that_pods_have() -> None:
    rows = dict(row for row in table("paddle-operator", "Variables") if "`" in row[1])
    job = paddle_job(worker=2, ps=1, intranet="Service", withGloo=2)
    pods = [placed(f"train-{role}", "10.0.0.1") for role in ("worker-0", "worker-1", "ps-0")]
    every = {name for name, _ in variables(pod_of(job, "worker-0"))}
    shared = set(config_map(job, *pods) or {})
    elastic = {name for name, _ in variables(pod_of(paddle_job(worker=2, elastic=1), "worker-0"))}
    found = every | shared | elastic
    named = {name for meaning in rows.values() for name in quoted(meaning)}
    assert len(named) > 14
    assert named <= found


def test_ms_guide_names_the_variables_that_pods_have() -> None:
    named = {name for names, _ in table("ms-operator", "Variables") for name in quoted(names)}
    job = ms_job(Scheduler=1, Worker=2)
    assert named == {name for name, _ in ms_environment(job, "worker-0")}


def test_dlrover_guide_names_variables_that_pods_have() -> None:
    (named,) = re.findall(r"^\| variables of pods \((.*?), …\)", text_of("dlrover"), re.MULTILINE)
    world = ElasticWorld(2)
    assert set(quoted(named)) <= set(elastic_variables(world.made(world.decide())["worker-0"]))


def test_training_operator_guide_names_variables_that_pods_have() -> None:
    (named,) = re.findall(r"^\| variables \((.*?), …\)", text_of("training-operator"), re.MULTILINE)
    pytorch = read_job(PyTorchFramework(), job_manifest("PyTorchJob", {"Master": 1, "Worker": 2}))
    tensorflow = read_job(TensorFlowFramework(), job_manifest("TFJob", {"PS": 1, "Worker": 2}))
    found = {
        name for job in (pytorch, tensorflow) for name, _ in variables(pod_of(job, "worker-0"))
    }
    assert set(quoted(named)) <= found


@pytest.mark.parametrize("page", sorted(GUIDES.glob("*.md")), ids=lambda page: page.stem)
def test_values_of_helm_commands_are_in_the_chart(page: Path) -> None:
    schema = yaml.safe_load((ROOT / "deploy/chart/values.schema.json").read_text())
    for name in re.findall(r"--set(?:-file)? '?([\w.]+)=", page.read_text(encoding="utf-8")):
        place = schema
        for part in name.split("."):
            assert part in place["properties"], f"{page.name}: {name}"
            place = place["properties"][part]


@pytest.mark.parametrize(
    "module", sorted(set(re.findall(r"`(gangline\.elastic\.[\w.]+)`", text_of("dlrover"))))
)
def test_dlrover_guide_names_modules_that_exist(module: str) -> None:
    path = ROOT / "src" / module.replace(".", "/")
    assert path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def test_dlrover_guide_names_classes_that_the_modules_have() -> None:
    from gangline.elastic.checkpoint import dlrover
    from gangline.elastic.data import client

    for name in ("DdpCheckpointer", "FsdpShardCheckpointer", "StorageType"):
        assert hasattr(dlrover, name)
    for name in ("ShardingClient", "IndexShardingClient"):
        assert hasattr(client, name)
