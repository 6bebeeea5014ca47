"""Volcano's configuration file is read, or refused with a reason."""

from dataclasses import replace

import pytest
import yaml

from chart_objects import OFF, chart_objects
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.loop import warn_of_ignored_settings
from gangline.scheduler.plugins.scores import ScoreWeights
from gangline.scheduler.queueing.order import FairnessPolicy
from gangline.scheduler.queueing.overcommit import AdmissionPolicy
from gangline.scheduler.reporting.replay import CONFIG_KEY, CONFIG_MAP, CONFIG_NAMESPACE
from gangline.scheduler.settings import SchedulerSettings
from gangline.scheduler.volcano_config import ConfigurationError, read_configuration
from unit.scheduler.builders import decide, node, pod

HELM = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
  - name: conformance
- plugins:
  - name: overcommit
  - name: drf
    enablePreemptable: false
  - name: predicates
  - name: proportion
  - name: nodeorder
  - name: binpack
"""

TUNED = """
actions: "enqueue, allocate, preempt, reclaim, backfill"
tiers:
- plugins:
  - name: binpack
    arguments:
      binpack.weight: 10
      binpack.cpu: 2
      binpack.resources: nvidia.com/gpu, example.com/foo
      binpack.resources.nvidia.com/gpu: 7
  - name: nodeorder
    arguments: {nodeaffinity.weight: 3, imagelocality.weight: 1}
"""


def test_default_file_is_read_without_evictions() -> None:
    found = read_configuration(HELM)
    assert (found.preempt, found.reclaim) == (False, False)
    assert found.weights == ScoreWeights()


def test_actions_and_arguments_are_taken_over() -> None:
    settings = read_configuration(TUNED).apply_to(SchedulerSettings())
    assert (settings.preempt, settings.reclaim) == (True, True)
    weights = settings.weights
    assert (weights.packing, weights.cpu, weights.affinity, weights.images) == (10, 2, 3, 1)
    assert weights.resource_weight("nvidia.com/gpu") == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("actions: allocate, shuffle", "unknown action 'shuffle'", id="action"),
        pytest.param("tiers: [{plugins: [{name: gnag}]}]", "unknown plugin 'gnag'", id="plugin"),
        pytest.param("tiers: [{plugins: [{name: tdm}]}]", "no revocable zones", id="no use"),
        *(
            pytest.param(
                f"tiers: [{{plugins: [{{name: predicates, arguments: {{{key}: {on}}}}}]}}]",
                f"{key.lower()} of plugin 'predicates': {why}",
                id=f"{key} {on}",
            )
            for key, why in (
                ("predicate.GPUSharingEnable", "devices are not shared"),
                ("predicate.DynamicResourceAllocationEnable", "claims of devices"),
            )
            for on in ("true", '"True"', '"1"')
        ),
        pytest.param(
            "tiers: [{plugins: [{name: binpack, arguments: {binpack.cup: 1}}]}]",
            "unknown argument 'binpack.cup'",
            id="argument",
        ),
        pytest.param(
            "tiers: [{plugins: [{name: nodeorder, arguments: {selectorspread.weight: 1}}]}]",
            "selectorspread.weight does nothing here: pods state how",
            id="an argument without effect",
        ),
        pytest.param(
            "tiers: [{plugins: [{name: binpack, arguments: {binpack.cpu: much}}]}]",
            "not a number",
            id="value",
        ),
        pytest.param(
            "tiers: [{plugins: [{name: nodeorder, arguments: {balancedresource.weight: .nan}}]}]",
            "finite",
            id="no weight at all",
        ),
        pytest.param(
            "tiers: [{plugins: [{name: binpack, arguments: {binpack.resources.a/b: 2}}]}]",
            "unknown argument 'binpack.resources.a/b'",
            id="a resource that is not listed",
        ),
        pytest.param(
            "tiers: [{plugins: [{name: gang, argument: {}}]}]", "unknown field 'argument'", id="key"
        ),
        pytest.param("tiers: [{plugins: [{name: 3}]}]", "Expected `str`", id="name"),
        pytest.param("tiers: [{plugins: [{}]}]", "missing required field `name`", id="no name"),
        pytest.param(
            "tiers: [{plugins: [{name: drf, enableHierarchy: perhaps}]}]",
            "Expected `bool`",
            id="switch",
        ),
        pytest.param("tears: []", "tears", id="field"),
        *(pytest.param(f"seed: {seed}", "Expected `int`", id=seed) for seed in ("often", "true")),
        pytest.param("{", "expected", id="no yaml"),
    ],
)
def test_unknown_names_are_errors(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_configuration(text)


def test_settings_without_effect_are_reported() -> None:
    assert read_configuration(HELM).apply_to(SchedulerSettings()).ignored_settings == (
        "enablePreemptable of plugin 'gang': its rules cannot be switched off",
    )
    text = """
actions: "allocate, preempt"
configurations: [{name: preempt, arguments: {enableTopologyAwarePreemption: true}}]
tiers:
- plugins:
  - {name: overcommit, arguments: {overcommit-factor: 0.5}}
  - {name: priority, enableJobOrder: true}
  - {name: drf, enableJobOrder: false, enableHierarchy: false}
"""
    assert read_configuration(text).ignored_settings == (
        "overcommit-factor of plugin 'overcommit': it is below 1, so 1.2 applies",
        "enableTopologyAwarePreemption of action 'preempt': it is not supported",
    )
    assert read_configuration("").ignored_settings == ()


def test_settings_without_effect_are_named_in_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = """
configurations: [{name: backfill, arguments: {backfill.learned: true}}]
tiers: [{plugins: [{name: gang, enablePreemptable: false}]}]
"""
    warn_of_ignored_settings(read_configuration(text).apply_to(SchedulerSettings()))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "enablePreemptable of plugin 'gang'" in record.getMessage()
    assert "backfill.learned" in record.getMessage()


def test_nodes_can_be_filled_evenly_instead() -> None:
    text = "tiers: [{plugins: [{name: nodeorder, arguments: {leastrequested.weight: 1}}]}]"
    state = SchedulerCache(read_configuration(text).weights)
    for name in ("a", "b"):
        state.set_node(node(name))
    for index in range(4):
        state.set_pod(pod(f"p{index}"))
    nodes = [binding.node for binding in decide(state).bindings]
    assert sorted(nodes) == ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("binpack", "nodeorder", "packing"),
    [
        pytest.param({}, {}, 1, id="default"),
        pytest.param({"binpack.weight": 5}, {}, 5, id="binpack"),
        pytest.param({}, {"mostrequested.weight": 0}, 0, id="neither full nor empty nodes"),
        pytest.param({"binpack.weight": 5}, {"leastrequested.weight": 1}, 4, id="both"),
        pytest.param({"binpack.weight": 5}, {"mostrequested.weight": 2}, 7, id="twice"),
        pytest.param({}, {"leastrequested.weight": 2}, -2, id="empty nodes only"),
        pytest.param({}, {"leastrequested.weight": 0}, 1, id="empty nodes count for nothing"),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_weights_for_full_and_for_empty_nodes_add_up_in_any_order(
    binpack: dict[str, int], nodeorder: dict[str, int], packing: float, turned: bool
) -> None:
    plugins = [
        {"name": "binpack", "arguments": binpack},
        {"name": "nodeorder", "arguments": nodeorder},
    ]
    text = yaml.safe_dump({"tiers": [{"plugins": plugins[:: -1 if turned else 1]}]})
    assert read_configuration(text).weights.packing == packing


@pytest.mark.parametrize(
    ("binpack", "nodeorder", "stranded_devices"),
    [
        pytest.param({"binpack.strandedDevices": 0}, {}, 0, id="switched off"),
        pytest.param({}, {"leastrequested.weight": 1}, 0, id="pods are spread"),
        pytest.param(
            {"binpack.strandedDevices": 3}, {"leastrequested.weight": 1}, 3, id="spread, and asked"
        ),
        pytest.param({"binpack.weight": 2}, {}, 2, id="default"),
    ],
)
def test_stranded_devices_are_scored_unless_pods_are_spread(
    binpack: dict[str, int], nodeorder: dict[str, int], stranded_devices: float
) -> None:
    named = {"binpack": binpack, "nodeorder": nodeorder}
    plugins = [{"name": name, "arguments": arguments} for name, arguments in named.items()]
    text = yaml.safe_dump({"tiers": [{"plugins": plugins}]})
    assert read_configuration(text).weights.stranded_devices == stranded_devices


def test_every_weight_of_nodeorder_does_something_or_is_refused() -> None:
    everything = {
        "leastrequested": 4,
        "mostrequested": 2,
        "nodeaffinity": 5,
        "podaffinity": 6,
        "podtopologyspread": 7,
        "tainttoleration": 8,
        "balancedresource": 9,
        "imagelocality": 10,
        "selectorspread": 0,
    }
    arguments = {f"{name}.weight": value for name, value in everything.items()}
    plugin = {"name": "nodeorder", "arguments": arguments}
    found = read_configuration(yaml.safe_dump({"tiers": [{"plugins": [plugin]}]})).weights
    assert found == ScoreWeights(
        packing=-2,
        stranded_devices=0,
        affinity=5,
        pod_affinity=6,
        spreading=7,
        discouraged=8,
        balance=9,
        images=10,
    )


@pytest.mark.parametrize(
    ("arguments", "weights"),
    [
        ("binpack.together: 2", ScoreWeights(fewer_nodes=2)),
        (
            "binpack.onemodel: 0, binpack.sparedevices: 7",
            ScoreWeights(same_device_model=0, spare_devices=7),
        ),
    ],
)
def test_arguments_of_binpack_are_weights_beside_the_seed(
    arguments: str, weights: ScoreWeights
) -> None:
    text = f"{{seed: 7, tiers: [{{plugins: [{{name: binpack, arguments: {{{arguments}}}}}]}}]}}"
    assert read_configuration(text).weights == replace(weights, seed=7)


@pytest.mark.parametrize(
    ("switch", "gangs", "namespaces", "hierarchical"),
    [
        pytest.param("", True, False, False, id="named"),
        pytest.param(", enableJobOrder: false", False, False, False, id="switched off"),
        pytest.param(", enableNamespaceOrder: true", True, True, False, id="namespaces"),
        pytest.param(", enableHierarchy: true", True, False, True, id="hierarchy"),
    ],
)
def test_switches_of_drf_choose_the_order_of_service(
    switch: str, gangs: bool, namespaces: bool, hierarchical: bool
) -> None:
    read = read_configuration(f"tiers: [{{plugins: [{{name: drf{switch}}}]}}]")
    settings = read.apply_to(SchedulerSettings())
    assert settings.policy.fairness == FairnessPolicy(gangs=gangs, namespaces=namespaces)
    assert settings.hierarchical is hierarchical
    assert read_configuration("").fairness == FairnessPolicy()


def test_deployed_configuration_equals_the_defaults() -> None:
    manifests = chart_objects(operator=OFF)
    (config_map,) = [each for each in manifests if each["kind"] == "ConfigMap"]
    assert config_map["metadata"]["name"] == CONFIG_MAP
    assert config_map["metadata"]["namespace"] == CONFIG_NAMESPACE
    settings = SchedulerSettings()
    found = read_configuration(config_map["data"][CONFIG_KEY])
    assert (found.preempt, found.reclaim) == (settings.preempt, settings.reclaim)
    assert (found.weights, found.admission) == (settings.weights, settings.admission)
    (deployment,) = [each for each in manifests if each["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert f"--configuration=/etc/gangline/{CONFIG_KEY}" in container["args"]


def test_refused_features_may_be_switched_off() -> None:
    arguments = (
        "predicate.GPUSharingEnable: false, predicate.DynamicResourceAllocationEnable: false"
    )
    text = f"tiers: [{{plugins: [{{name: predicates, arguments: {{{arguments}}}}}]}}]"
    assert len(read_configuration(text).ignored_settings) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", AdmissionPolicy(factor=1.2), id="Volcano's default"),
        pytest.param("{name: gang}", AdmissionPolicy(factor=None), id="without overcommit"),
        pytest.param("{name: overcommit}", AdmissionPolicy(factor=1.2), id="without a factor"),
        pytest.param(
            "{name: overcommit, arguments: {overcommit-factor: 0.9, "
            "overcommit-factor.cpu: 2, overcommit-factor.nvidia.com/GPU: '1.5'}}",
            AdmissionPolicy(1.2, (("cpu", 2.0), ("nvidia.com/GPU", 1.5))),
            id="factors of resources",
        ),
        pytest.param(
            "{name: sla, arguments: {sla-waiting-time: 1h2m3.5s}}",
            AdmissionPolicy(None, waiting_time_s=3723.5),
            id="waiting time",
        ),
        pytest.param(
            "{name: sla, arguments: {JobWaitingTime: 500ms}}",
            AdmissionPolicy(None, waiting_time_s=0.5),
            id="the other name of the waiting time",
        ),
    ],
)
def test_admission_is_read_from_the_configuration(text: str, expected: AdmissionPolicy) -> None:
    settings = read_configuration(f"tiers: [{{plugins: [{text}]}}]").apply_to(SchedulerSettings())
    assert settings.policy.admission == expected


def test_without_enqueue_all_gangs_are_admitted() -> None:
    text = "{actions: allocate, tiers: [{plugins: [{name: overcommit}]}]}"
    assert read_configuration(text).admission.factor is None


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        ("{name: overcommit, arguments: {overcommit-factor: much}}", "is 'much', not a number"),
        ("{name: overcommit, arguments: {factor: 1}}", "unknown argument 'factor'"),
        ("{name: sla, arguments: {sla-waiting-time: soon}}", "such as 1h30m"),
        ("{name: sla, arguments: {waiting: 1h}}", "there are: sla-waiting-time"),
    ],
)
def test_wrong_arguments_of_admission_are_refused(plugin: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_configuration(f"tiers: [{{plugins: [{plugin}]}}]")


def test_the_case_of_names_does_not_matter() -> None:
    upper = """
actions: "Enqueue, Allocate, Reclaim"
tiers:
- plugins:
  - name: DRF
  - name: BinPack
    arguments: {BinPack.Weight: 10, binpack.Resources: x/GPU, binpack.Resources.x/GPU: 7}
"""
    read = read_configuration(upper)
    assert (read.reclaim, read.preempt, read.fairness.gangs) == (True, False, True)
    assert (read.weights.packing, read.weights.resource_weight("x/GPU")) == (10, 7)
