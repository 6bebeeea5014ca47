"""Writes with kubectl: create, apply, diff, edit, patch, replace, label."""

from pathlib import Path

from integration.kubectl.manifests import CONFIG, deployment
from integration.kubectl.tool import Kubectl

COLOUR = ".data.colour"


def test_create_by_command(kubectl: Kubectl) -> None:
    kubectl("create configmap made --from-literal=colour=red")
    assert kubectl.field("configmap made", COLOUR) == "red"
    kubectl("create secret generic keys --from-literal=key=value")
    assert kubectl.field("secret keys", ".data.key") == "dmFsdWU="
    kubectl("create serviceaccount robot")
    kubectl("create role reader --verb=get --resource=pods")
    kubectl("create rolebinding reads --role=reader --user=ann")
    assert "already exists" in kubectl.refused("create configmap made")
    kubectl("delete rolebinding/reads role/reader serviceaccount/robot secret/keys configmap/made")


def test_create_dry_run_stores_nothing(kubectl: Kubectl) -> None:
    assert "dry run" in kubectl("create -f - --dry-run=server", text=CONFIG % ("dry", "red"))
    assert "NotFound" in kubectl.refused("get configmap dry")


STORED_ONLY = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: idle}
spec: {podSelector: {}}
"""


def test_create_a_kind_without_a_controller_is_stored_with_a_warning(kubectl: Kubectl) -> None:
    output = kubectl("create -f -", text=STORED_ONLY)
    assert "idle created" in output
    kind = "NetworkPolicy"
    assert f"Warning: {kind} objects are stored by this cluster, but nothing acts on" in output
    kubectl("delete networkpolicy idle")


def test_jobs_of_batch_are_shown_as_on_kubernetes(kubectl: Kubectl) -> None:
    output = kubectl("create job idle --image=busybox:1 -- sleep 9")
    assert output.strip() == "job.batch/idle created"
    header, row = kubectl("get jobs").splitlines()
    assert header.split() == ["NAME", "STATUS", "COMPLETIONS", "DURATION", "AGE"]
    assert row.split()[:3] == ["idle", "Running", "0/1"]
    assert "Parallelism:" in kubectl("describe job idle")
    kubectl("delete job idle")


def test_apply_creates_leaves_alone_and_changes(kubectl: Kubectl) -> None:
    assert "created" in kubectl("apply -f -", text=CONFIG % ("applied", "red"))
    assert "unchanged" in kubectl("apply -f -", text=CONFIG % ("applied", "red"))
    assert "configured" in kubectl("apply -f -", text=CONFIG % ("applied", "blue"))
    assert kubectl.field("configmap applied", COLOUR) == "blue"
    without = (CONFIG % ("applied", "blue")).replace("colour:", "shape:")
    kubectl("apply -f -", text=without)
    assert kubectl.field("configmap applied", COLOUR) == ""
    kubectl("delete configmap applied")


def test_server_side_apply_conflict_names_the_other_manager(kubectl: Kubectl) -> None:
    apply = "apply --server-side --field-manager"
    kubectl(f"{apply}=one -f -", text=CONFIG % ("shared", "red"))
    output = kubectl.refused(f"{apply}=two -f -", text=CONFIG % ("shared", "blue"))
    assert 'conflict with "one": .data.colour' in output
    kubectl(f"{apply}=two --force-conflicts -f -", text=CONFIG % ("shared", "blue"))
    assert kubectl.field("configmap shared", COLOUR) == "blue"
    kubectl("delete configmap shared")


def test_diff_shows_what_would_change_and_changes_nothing(kubectl: Kubectl) -> None:
    kubectl("apply --server-side -f -", text=CONFIG % ("differs", "red"))
    assert kubectl("diff -f -", text=CONFIG % ("differs", "red")) == ""
    assert kubectl("diff --server-side -f -", text=CONFIG % ("differs", "red")) == ""
    code, output = kubectl.run("diff", "-f", "-", text=CONFIG % ("differs", "blue"))
    assert code == 1
    assert "-  colour: red" in output
    assert "+  colour: blue" in output
    assert kubectl.field("configmap differs", COLOUR) == "red"
    kubectl("delete configmap differs")


def test_edit_changes_or_says_why_not(kubectl: Kubectl, tmp_path: Path) -> None:
    def editor(script: str) -> str:
        path = tmp_path / "editor"
        path.write_text(f'#!/bin/sh\nsed -i "{script}" "$1"\n')
        path.chmod(0o755)
        return str(path)

    kubectl("create -f -", text=deployment("edited"))
    code, output = kubectl.run(
        "edit", "deployment", "edited", EDITOR=editor("s/replicas: 1/replicas: 0/")
    )
    assert code == 0, output
    assert kubectl.field("deployment edited", ".spec.replicas") == "0"
    code, output = kubectl.run("edit", "deployment", "edited", EDITOR=editor("s/x/x/"))
    assert (code, "no changes made" in output) == (0, True)
    wrong = editor("s/replicas: 0/replicas: many/")
    code, output = kubectl.run("edit", "deployment", "edited", EDITOR=wrong)
    assert code == 1
    assert "is invalid" in output
    kubectl("delete deployment edited")


def test_patch_of_a_job(job: Kubectl) -> None:
    path = ".spec.runPolicy.backoffLimit"
    job('patch pytorchjob train --type=merge -p {"spec":{"runPolicy":{"backoffLimit":5}}}')
    assert job.field("pytorchjob train", path) == "5"
    output = job.refused('patch pytorchjob train -p {"spec":{"runPolicy":{"backoffLimit":6}}}')
    assert "application/merge-patch+json" in output
    wrong = '{"spec":{"runPolicy":{"backoffLimit":"many"}}}'
    output = job.refused("patch pytorchjob train --type=merge -p", wrong)
    assert "spec.runPolicy.backoffLimit" in output
    assert "must be of type integer" in output


def test_replace_checks_the_version_and_force_recreates(kubectl: Kubectl) -> None:
    kubectl("create -f -", text=CONFIG % ("replaced", "red"))
    seen = kubectl("get configmap replaced -o yaml")
    kubectl("replace -f -", text=seen.replace("red", "blue"))
    assert "Conflict" in kubectl.refused("replace -f -", text=seen.replace("red", "green"))
    before = kubectl.field("configmap replaced", ".metadata.uid")
    kubectl("replace --force -f -", text=CONFIG % ("replaced", "green"))
    assert kubectl.field("configmap replaced", COLOUR) == "green"
    assert kubectl.field("configmap replaced", ".metadata.uid") != before
    kubectl("delete configmap replaced")
