"""Warnings: valid fields that probably do not have the intended effect."""

from typing import Any

import pytest

from gangline.api.validation.validate import check_manifest, validate_manifest
from unit.api.validation.test_validation_kubeflow import KINDS, every_kind, job, path, pod, worker


def advice(written: dict[str, Any]) -> dict[str, str]:
    """The warnings by the path of the field; only for jobs without errors."""
    assert validate_manifest(written) == []
    return {warning.path: str(warning) for warning in check_manifest(written).warnings}


def usual(kind: str, **spec: Any) -> dict[str, Any]:
    """A job that gives no reason for a warning."""
    if kind == "MPIJob":
        spec["runPolicy"] = {"cleanPodPolicy": "Running", **spec.get("runPolicy", {})}
    return job(kind, **spec)


@every_kind
def test_a_usual_job_gives_no_reason(kind):
    assert advice(usual(kind)) == {}


@every_kind
def test_equal_restart_policies_cause_no_warning(kind):
    written = usual(kind)
    worker(written)["restartPolicy"] = pod(written)["restartPolicy"] = "OnFailure"
    assert advice(written) == {}


@every_kind
def test_a_role_in_another_spelling_cannot_be_scaled(kind):
    written = usual(kind)
    roles = written["spec"][KINDS[kind][0]]
    roles["worker"] = roles.pop("Worker")
    assert "write Worker" in advice(written)[path(kind, ".worker")]


@pytest.mark.parametrize(
    ("kind", "variable"),
    [
        ("PyTorchJob", "MASTER_ADDR"),
        ("PyTorchJob", "WORLD_SIZE"),
        ("TFJob", "TF_CONFIG"),
        ("JAXJob", "PROCESS_ID"),
        ("XGBoostJob", "RANK"),
    ],
)
def test_a_variable_that_the_operator_sets(kind, variable):
    written = usual(kind)
    pod(written)["containers"][0]["env"] = [
        {"name": "LR", "value": "0.1"},
        {"name": variable, "value": "mine"},
    ]
    where = path(kind, ".Worker.template.spec.containers[0].env[1]")
    assert list(advice(written)) == [where]


def test_variable_of_a_sidecar_causes_no_warning_if_only_the_main_container_gets_variables():
    written = usual("TFJob")
    sidecar = {"name": "side", "image": "x", "env": [{"name": "TF_CONFIG", "value": "{}"}]}
    pod(written)["containers"].append(sidecar)
    assert advice(written) == {}


def test_a_launchers_own_settings_win():
    written = usual("MPIJob")
    pod(written)["containers"][0]["env"] = [{"name": "OMPI_MCA_plm_rsh_agent", "value": "ssh"}]
    assert advice(written) == {}


@every_kind
def test_the_hosts_network_takes_names_and_ports_away(kind):
    written = usual(kind)
    pod(written)["hostNetwork"] = True
    messages = [str(warning) for warning in check_manifest(written).warnings]
    assert "dnsPolicy: ClusterFirstWithHostNet" in messages[0]
    assert "podAntiAffinity" in messages[1]
    pod(written)["dnsPolicy"] = "ClusterFirstWithHostNet"
    pod(written)["affinity"] = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname"}
            ]
        }
    }
    assert advice(written) == {}


@pytest.mark.parametrize("kind", ["TFJob", "JAXJob", "XGBoostJob", "MPIJob"])
def test_a_limit_of_restarts_where_nothing_is_restarted(kind):
    messages = advice(usual(kind, runPolicy={"backoffLimit": 3}))
    assert "'Never'" in messages["spec.runPolicy.backoffLimit"]
    written = usual(kind, runPolicy={"backoffLimit": 3})
    worker(written)["restartPolicy"] = "OnFailure"
    assert advice(written) == {}


@pytest.mark.parametrize("kind", ["PyTorchJob", "TFJob", "JAXJob", "XGBoostJob"])
def test_always_is_for_replicas_that_need_not_end(kind):
    written = usual(kind)
    worker(written)["restartPolicy"] = "Always"
    assert "use OnFailure" in advice(written)[path(kind, ".Worker.restartPolicy")]


@pytest.mark.parametrize("policy", ["Always", "Never"])
def test_gang_restart_causes_no_warning_for_any_restart_policy(policy):
    written = usual("JAXJob", runPolicy={"backoffLimit": 3})
    worker(written)["restartPolicy"] = policy
    written["metadata"]["annotations"] = {"gangline.dev/restart": "gang"}
    assert advice(written) == {}


def test_always_is_fine_for_parameter_servers():
    written = usual("TFJob")
    written["spec"]["tfReplicaSpecs"]["PS"]["restartPolicy"] = "Always"
    assert advice(written) == {}


def test_warning_about_an_old_field_names_the_new_one():
    written = usual("PyTorchJob", elasticPolicy={"nProcPerNode": 4, "minReplicas": 1})
    messages = advice(written)["spec.elasticPolicy.nProcPerNode"]
    assert 'give spec.nprocPerNode: "4"' in messages


def test_a_tfjob_has_one_evaluator():
    written = job("TFJob", {"Chief": 1, "Evaluator": 2})
    assert "give 1" in advice(written)[path("TFJob", ".Evaluator.replicas")]


def test_a_dynamic_tfjobs_chief_gets_no_addresses():
    written = job("TFJob", {"Chief": 1, "Worker": 2}, enableDynamicWorker=True)
    assert "omit Chief" in advice(written)["spec.enableDynamicWorker"]


def test_what_takes_the_place_of_an_mpijobs_files_or_is_not_run_is_named():
    written = usual("MPIJob")
    pod(written)["volumes"] = [{"name": "own", "emptyDir": {}}]
    (container,) = pod(written)["containers"]
    container |= {"volumeMounts": [{"name": "own", "mountPath": "/etc/mpi/"}], "args": ["-D"]}
    container.pop("command", None)
    where = path("MPIJob", ".Worker.template.spec.containers[0]")
    assert advice(written).keys() == {f"{where}.volumeMounts[0].mountPath", f"{where}.args"}


@pytest.mark.parametrize("policy", [None, "None"])
def test_mpi_workers_wait_for_ever_after_the_end(policy):
    written = job("MPIJob", runPolicy={"cleanPodPolicy": policy} if policy else {})
    assert "give Running" in advice(written)["spec.runPolicy.cleanPodPolicy"]
    assert advice(job("MPIJob", {"Launcher": 1}, runPolicy={})) == {}
    assert advice(job("MPIJob", cleanPodPolicy="All")) == {}


def test_of_two_places_for_one_policy_the_newer_counts():
    written = job("MPIJob", runPolicy={"cleanPodPolicy": "All"}, cleanPodPolicy="Running")
    assert "omit it" in advice(written)["spec.cleanPodPolicy"]


@pytest.mark.parametrize(
    "written",
    [
        {},
        {"apiVersion": "v1", "kind": "Pod"},
        {"apiVersion": "kubeflow.org/v1", "kind": ["TFJob"]},
        {"apiVersion": "kubeflow.org/v1", "kind": "TFJob"},
        {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "spec": 3},
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "TFJob",
            "spec": {"tfReplicaSpecs": {"Worker": {"template": {"spec": 7}}}},
        },
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "TFJob",
            "spec": {
                "tfReplicaSpecs": {
                    "Worker": {"template": {"spec": {"containers": [1, {"env": [None, 2]}]}}}
                }
            },
        },
    ],
)
def test_there_is_no_advice_on_what_is_no_job(written):
    assert check_manifest(written).warnings == []
