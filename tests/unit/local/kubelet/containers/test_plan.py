"""Container plans from specs: commands, users, limits, mounts, and the resulting file system."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gangline.api.core.pod import Pod
from gangline.local.kubelet.configuration import ContainerConfigError
from gangline.local.kubelet.containers.images import (
    ImageMapError,
    ResolvedImage,
    load_image_map,
)
from gangline.local.kubelet.containers.plan import (
    DEFAULT,
    NAMES,
    NoCommandError,
    PlanInputs,
    bounding_set,
    build_container_plan,
    capability_numbers,
    termination_message,
)
from gangline.local.kubelet.pods.admission import unsupported_fields
from gangline.local.kubelet.runtime import isolation
from gangline.local.kubelet.runtime.command_check import (
    check_command,
    check_workdir,
    parse_launch_failure,
)
from gangline.local.kubelet.runtime.interface import (
    ContainerMount,
    ContainerPlan,
    ContainerStartError,
)
from gangline.local.kubelet.runtime.isolation import Isolation, IsolationLevel
from gangline.local.kubelet.runtime.mount_namespace import MountNamespace
from gangline.local.kubelet.runtime.paths import is_within, resolve_inside
from gangline.local.kubelet.runtime.process_runtime import OutputThrottle
from gangline.local.kubelet.volumes import PodFolders
from gangline.local.network.addresses import NetworkAttachment

PATH = "/usr/bin:/bin"


def plan_of(tmp_path: Path, image: ResolvedImage | None = None, **spec: Any) -> ContainerPlan:
    container = {"name": "c", "image": "i", "command": ["run"], **spec.pop("container", {})}
    body = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"containers": [container], **spec},
    }
    pod = msgspec.convert(body, Pod)
    volume = tmp_path / "volume"
    volume.mkdir(exist_ok=True)
    made_of = PlanInputs(
        image=image or ResolvedImage({}),
        env={"PATH": PATH, "WHO": "me"},
        folders=PodFolders(tmp_path / "pod", tmp_path / "memory", tmp_path / "logs"),
        volumes={"v": volume},
        attachment=NetworkAttachment(
            "10.0.0.1", None, "p", tmp_path / "hosts", tmp_path / "resolv"
        ),
    )
    return build_container_plan(pod, pod.spec.containers[0], 0, made_of)


def mounted(plan: ContainerPlan, target: str) -> ContainerMount:
    return next(mount for mount in plan.mounts if mount.target == target)


def test_command_and_arguments_are_expanded(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, container={"command": ["run", "$(WHO)"], "args": ["$$(WHO)", "$(X)"]})
    assert plan.argv == ("run", "me", "$(WHO)", "$(X)")


def test_the_images_command_runs_when_none_is_given(tmp_path: Path) -> None:
    image = ResolvedImage({}, command=("entry",), workdir="/work")
    plan = plan_of(tmp_path, image, container={"command": [], "args": ["x"]})
    assert (plan.argv, plan.workdir) == (("entry", "x"), "/work")
    with pytest.raises(NoCommandError, match="image map"):
        plan_of(tmp_path, container={"command": []})


def test_user_group_and_limits(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        securityContext={"runAsUser": 5, "fsGroup": 7, "supplementalGroups": [8]},
        container={
            "securityContext": {"runAsGroup": 6},
            "resources": {"limits": {"cpu": "500m", "memory": "1Mi"}, "requests": {"cpu": "0.1"}},
        },
    )
    assert (plan.identity.user, plan.identity.group) == (5, 6)
    assert set(plan.identity.groups) == {7, 8}
    assert (plan.limits.cpu_limit_milli, plan.limits.cpu_request_milli) == (500, 100)
    assert plan.limits.memory_bytes == 1 << 20


def test_root_is_refused_where_it_is_forbidden(tmp_path: Path) -> None:
    with pytest.raises(ContainerConfigError, match="runAsNonRoot"):
        plan_of(tmp_path, securityContext={"runAsNonRoot": True})
    plan_of(tmp_path, securityContext={"runAsNonRoot": True, "runAsUser": 1})


def test_a_pod_that_names_no_user_runs_as_that_of_its_image(tmp_path: Path) -> None:
    image = ResolvedImage({}, command=("entry",), user=65532, group=65533)
    own = plan_of(tmp_path, image, securityContext={"runAsNonRoot": True}).identity
    assert (own.user, own.group) == (65532, 65533)
    given = plan_of(tmp_path, image, securityContext={"runAsUser": 5}).identity
    assert (given.user, given.group) == (5, None)
    with pytest.raises(ImageMapError, match="user"):
        load_image_map({"a*": {"user": -1}})


def test_sub_paths_are_made_and_stay_inside(tmp_path: Path) -> None:
    def with_path(path: str, **more: Any) -> ContainerPlan:
        mount = {"name": "v", "mountPath": "/data/", **more}
        if path:
            mount["subPath"] = path
        volumes = [{"name": "v", "emptyDir": {}}]
        return plan_of(tmp_path, volumes=volumes, container={"volumeMounts": [mount]})

    assert mounted(with_path("a/b"), "/data").source == tmp_path / "volume/a/b"
    assert mounted(with_path("", subPathExpr="$(WHO)"), "/data").source.name == "me"
    assert mounted(with_path("", readOnly=True), "/data").read_only
    (tmp_path / "volume/link").symlink_to("/etc")
    for path in ("../x", "/etc", "link"):
        with pytest.raises(ContainerConfigError, match="leads out of the volume"):
            with_path(path)


def test_a_mount_without_its_volume_is_named(tmp_path: Path) -> None:
    with pytest.raises(ContainerConfigError, match='names volume "w"'):
        plan_of(tmp_path, container={"volumeMounts": [{"name": "w", "mountPath": "/x"}]})


def test_termination_message_is_read_from_the_file_or_else_the_log(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, container={"terminationMessagePolicy": "FallbackToLogsOnError"})
    body = {"name": "c", "terminationMessagePolicy": "FallbackToLogsOnError"}
    container = msgspec.convert({"spec": {"containers": [body]}}, Pod).spec.containers[0]
    assert termination_message(container, plan.state_dir, b"log", 1) == "log"
    assert termination_message(container, plan.state_dir, b"log", 0) == ""
    (plan.state_dir / "termination-log").write_text("file")
    assert termination_message(container, plan.state_dir, b"log", 1) == "file"


def test_the_machines_folders_are_covered_where_a_mount_point_is_missing(tmp_path: Path) -> None:
    source = tmp_path / "volume"
    plan = plan_of(tmp_path, container={"workingDir": "/gangline-work"})
    mounts = (
        ContainerMount(source, "/etc/gangline-none/x"),
        ContainerMount(source, "/gangline-none"),
        ContainerMount(source, "/etc/hosts"),
    )
    plan = ContainerPlan(**{**_fields(plan), "mounts": mounts})
    script = MountNamespace(plan).write_script()
    tables = "".join(path.read_text() for path in sorted(plan.state_dir.glob("mounts-*.tab")))
    covers = [line for line in tables.splitlines() if " overlay " in line]
    assert [line.split()[1] for line in covers] == [f"{plan.state_dir}/root/etc"]
    assert f"{plan.state_dir}/root/gangline-work" in script


def test_root_home_is_private_where_the_machines_cannot_be_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = f"{tmp_path}/pod/containers/c/0/home {tmp_path}/pod/containers/c/0/root/root none rbind"
    for may_enter in (True, False):
        monkeypatch.setattr(os, "access", lambda *_, answer=may_enter: answer)
        plan = plan_of(tmp_path, container={"workingDir": "/root"})
        MountNamespace(plan).write_script()
        tables = "".join(path.read_text() for path in plan.state_dir.glob("mounts-*.tab"))
        assert (bound in tables) is not may_enter


@pytest.mark.parametrize(
    ("workdir", "may_enter", "refusal"),
    [
        pytest.param("/etc/passwd", True, "not a directory", id="a file"),
        pytest.param("/etc/passwd/x", True, "not a directory", id="below a file"),
        pytest.param("/usr/lib", False, "permission denied", id="of another user"),
        pytest.param("/usr/gangline-none", False, "", id="missing: it is created"),
        pytest.param("/root", False, "", id="the container's own"),
    ],
)
def test_working_folder_that_cannot_be_entered_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workdir: str,
    may_enter: bool,
    refusal: str,
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: may_enter)
    plan = plan_of(tmp_path, container={"command": ["sh"], "workingDir": workdir})
    if not refusal:
        check_workdir(plan)
        return
    with pytest.raises(ContainerStartError, match=rf'workingDir "{workdir}": {refusal}') as error:
        check_command(plan)
    assert error.value.exit_code == 128


def _fields(plan: ContainerPlan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in plan.__slots__}


def test_links_are_resolved_below_a_root(tmp_path: Path) -> None:
    base = str(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    (tmp_path / "up").symlink_to("../../../run")
    (tmp_path / "loop").symlink_to("loop")
    assert resolve_inside(base, "/var/run/secrets/x") == "/run/secrets/x"
    assert resolve_inside(base, "/up/y") == "/run/y"
    assert resolve_inside(base, "/var/run/x", stop_at=("/var",)) == "/var/run/x"
    assert resolve_inside(base, "/loop/x").endswith("/x")
    assert is_within("/a/b", "/a")
    assert not is_within("/ab", "/a")


def test_command_is_searched_in_the_containers_path(tmp_path: Path) -> None:
    tool = tmp_path / "volume/tool"
    plan = plan_of(tmp_path)
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    mounts = (ContainerMount(tmp_path / "volume", "/tools"),)

    def check(*argv: str, path: str = PATH) -> None:
        changed = {**_fields(plan), "argv": argv, "mounts": mounts, "env": {"PATH": path}}
        check_command(ContainerPlan(**changed))

    check("sh")
    check("/tools/tool")
    check("tool", path="/tools:/bin")
    for argv in (["tool"], ["/tools/none"], ["/tmp/x"], ["./none"]):
        with pytest.raises(ContainerStartError) as caught:
            check(*argv)
        assert caught.value.exit_code == 127
    tool.chmod(0o644)
    with pytest.raises(ContainerStartError, match="permission denied") as caught:
        check("/tools/tool")
    assert caught.value.exit_code == 126


@pytest.mark.parametrize(
    ("code", "errors", "failed"),
    [
        (127, b"unshare: failed to execute /x: No such file or directory\n", True),
        (126, b"unshare: failed to execute /x: Permission denied\n", True),
        (127, b"sh: 1: foo: not found\n", False),
        (127, b"line\nunshare: failed to execute /x: No such file or directory\n", False),
        (1, b"unshare: failed to execute /x: No such file or directory\n", False),
    ],
)
def test_launcher_error_is_distinguished_from_program_output(
    code: int, errors: bytes, failed: bool
) -> None:
    assert (parse_launch_failure("/x", code, errors) is not None) == failed


def test_each_isolation_level_enters_its_namespaces() -> None:
    root = " ".join(Isolation(IsolationLevel.ROOT).enter_command("/run/netns/x", ["/cg"]))
    assert "nsenter --net=/run/netns/x" in root
    assert "/cg --" in root
    user = " ".join(Isolation(IsolationLevel.USER).enter_command("/run/netns/x"))
    assert "--map-root-user" in user
    assert "nsenter" not in user
    assert "unshare" not in Isolation(IsolationLevel.NONE).enter_command(None)
    assert "--user" in Isolation(IsolationLevel.USER).join_command(1)
    assert f"sh {os.getpid()} --" in " ".join(Isolation(IsolationLevel.NONE).enter_command(None))


def test_old_env_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "_try_command", lambda command: "invalid option -- 'S'")
    detected = isolation.detect_isolation.__wrapped__()
    assert detected.level is IsolationLevel.NONE
    assert "coreutils 8.30 or newer is required (invalid option -- 'S')" in detected.limitation


def test_unsupported_fields_are_listed() -> None:
    plain = msgspec.convert({"spec": {"containers": [{"name": "c"}]}}, Pod)
    assert unsupported_fields(plain, as_root=False) == []
    body = {
        "hostPID": True,
        "containers": [
            {
                "name": "c",
                "securityContext": {"runAsUser": 5, "capabilities": {"add": ["SYS_ADMIN"]}},
            }
        ],
        "securityContext": {"sysctls": [{"name": "net.ipv4.tcp_rmem", "value": "1"}]},
    }
    pod = msgspec.convert({"spec": body}, Pod)
    assert unsupported_fields(pod, as_root=True) == ["hostPID"]
    without_root = unsupported_fields(pod, as_root=False)
    assert "securityContext.sysctls (needs root and namespaces)" in without_root
    for field in ("runAsUser", "capabilities"):
        assert f"containers[c].securityContext.{field} (needs root)" in without_root


def test_output_takes_a_fifth_of_the_time_at_most() -> None:
    pace, now, spent = OutputThrottle(0.0), 0.0, 0.0
    for _ in range(1000):
        rest = pace.spend(now, now + 0.01)
        now, spent = now + 0.01 + rest, spent + 0.01
    assert 0.15 < spent / now <= 0.21
    quiet = OutputThrottle(0.0)
    assert all(quiet.spend(second, second + 0.001) == 0.0 for second in range(1, 100))


def test_capability_all_comes_before_single_names() -> None:
    assert bounding_set([], []) == DEFAULT
    assert bounding_set([], ["ALL"]) == frozenset()
    assert bounding_set(["ALL"], ["SYS_ADMIN"]) == set(NAMES) - {"SYS_ADMIN"}
    assert bounding_set(["NET_ADMIN"], ["all"]) == {"NET_ADMIN"}
    assert bounding_set(["NET_ADMIN"], ["ALL", "NET_ADMIN"]) == frozenset()


def test_capabilities_may_have_the_prefix_of_the_kernel_and_unknown_ones_have_no_effect() -> None:
    assert bounding_set(["CAP_SYS_PTRACE", "FLY"], ["cap_chown"]) == (
        (DEFAULT | {"SYS_PTRACE"}) - {"CHOWN"}
    )


def test_capability_numbers_are_those_of_the_kernel() -> None:
    names = {"CHOWN", "SYS_ADMIN", "CHECKPOINT_RESTORE", "NET_ADMIN"}
    assert capability_numbers(names) == (0, 12, 21, 40)
