"""Streams with kubectl: logs, exec, attach, cp, port-forward, wait."""

import os
import re
import urllib.request
from http.client import RemoteDisconnected
from pathlib import Path

import pytest

from integration.kubectl.manifests import pod
from integration.kubectl.tool import Kubectl, Stream, until


def test_logs_in_parts(talker: Kubectl) -> None:
    output = talker("logs talker -c first")
    assert output.startswith("first speaks\na second line\n")
    assert talker("logs talker -c second") == "second speaks\n"
    assert len(talker("logs talker -c first --tail=2").splitlines()) == 2
    assert talker("logs talker -c first --limit-bytes=5") == "first"
    until(lambda: "first speaks" not in talker("logs talker -c first --since=1s"))
    stamped = talker("logs talker -c second --timestamps")
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z second speaks", stamped)
    both = talker("logs talker --all-containers --prefix")
    assert "[pod/talker/first] first speaks" in both
    assert "[pod/talker/second] second speaks" in both


def test_logs_of_selected_pods_and_of_a_deployment(web: Kubectl, talker: Kubectl) -> None:
    assert "second speaks" in web("logs -l app=talker --all-containers --tail=-1")
    assert "Serving HTTP" in web("logs deployment/web")


def test_logs_follow(talker: Kubectl) -> None:
    with talker.going("logs", "-f", "--tail=1", "talker", "-c", "first") as following:
        assert following.read_until("on\n", times=3).count("on\n") >= 3
    with talker.going("logs", "-f", "-l", "app=talker", "--all-containers") as following:
        assert following.read_until("on\n", times=3).count("on\n") >= 3


def test_logs_follow_to_the_end_of_a_run(kubectl: Kubectl) -> None:
    kubectl(
        "create -f -", text=pod("brief", "echo start; sleep 1; echo end", restartPolicy="Never")
    )
    until(lambda: kubectl.field("pod brief", ".status.phase") in ("Running", "Succeeded"))
    assert kubectl("logs -f brief") == "start\nend\n"
    kubectl("delete pod brief")


def test_logs_of_the_previous_run(kubectl: Kubectl) -> None:
    kubectl("create -f -", text=pod("falls", "echo run; sleep 1; exit 3"))
    kubectl.until("pod falls", ".status.containerStatuses[0].lastState.terminated.exitCode", "3")
    assert kubectl("logs falls --previous") == "run\n"
    until(lambda: "Back-off restarting failed container" in kubectl("describe pod falls"))
    kubectl("delete pod falls --now")


def test_logs_say_why_there_are_none(talker: Kubectl) -> None:
    output = talker.refused("logs talker -c first --previous")
    assert 'previous terminated container "first" in pod "talker" not found' in output
    assert "container third is not valid for pod talker" in talker.refused("logs talker -c third")
    assert "NotFound" in talker.refused("logs nobody")


def test_exec(talker: Kubectl) -> None:
    script = "echo out; echo err >&2; exit 7"
    code, output = talker.run("exec", "talker", "-c", "first", "--", "sh", "-c", script)
    assert code == 7
    assert {"out", "err"} <= set(output.split())
    assert talker("exec -i talker -c first -- cat", text="word\n") == "word\n"
    assert talker("exec talker -c second -- hostname") == "talker\n"
    assert "container third is not valid" in talker.refused("exec talker -c third -- true")
    assert "NotFound" in talker.refused("exec nobody -- true")
    code, output = talker.run("exec", "talker", "-c", "first", "--", "no-such-command")
    assert code in (126, 127)
    assert "no-such-command" in output


def test_exec_by_the_name_of_the_owner(web: Kubectl) -> None:
    assert web("exec deployment/web -- hostname").startswith("web-")


def test_exec_on_a_terminal(talker: Kubectl) -> None:
    with talker.on_terminal(
        "exec", "-it", "talker", "-c", "first", "--", "sh", rows=33, columns=99
    ) as shell:
        shell.read_until("# ")
        shell.write("stty size; echo is-$((1+1))\n")
        assert "33 99" in shell.read_until("is-2")
        shell.resize(rows=20, columns=70)
        until(lambda: _size_seen_by(shell) == "20 70")
        # The interrupted process prints it: a key between a shell's fork and wait is lost.
        shell.write("sh -c 'echo goes-$((5+5)); exec sleep 1000'\n")
        shell.read_until("goes-10")
        shell.write("\x03")
        shell.read_until("^C")
        shell.write("echo interrupted-$((3+4))\n")
        shell.read_until("interrupted-7")
        shell.write("exit 5\n")
        assert shell.read_to_end() == 5, shell.output


def _size_seen_by(shell: Stream) -> str:
    before = len(shell.output)
    shell.write("stty size; echo then-$((4+5))\n")
    ends = shell.output.count("then-9") + 1
    shell.read_until("then-9", times=ends)
    found = re.findall(r"^(\d+ \d+)\r?$", shell.output[before:], re.MULTILINE)
    return found[-1] if found else ""


def test_run_and_attach(kubectl: Kubectl) -> None:
    script = "read word; echo got $word; exit 4"
    flags = ("--image=busybox:1", "--restart=Never", "-i", "--rm", "--command")
    code, output = kubectl.run("run", "reader", *flags, "--", "sh", "-c", script, text="hello\n")
    assert "got hello" in output
    assert "couldn't attach" not in output
    assert code == 4
    assert "NotFound" in kubectl.refused("get pod reader")


def test_attach_to_what_has_ended_says_so(kubectl: Kubectl) -> None:
    kubectl("create -f -", text=pod("over", "true", restartPolicy="Never"))
    kubectl.until("pod over", ".status.phase", "Succeeded")
    output = kubectl.refused("attach over")
    assert "cannot attach a container in a completed pod" in output
    assert "cannot exec into a container in a completed pod" in kubectl.refused("exec over -- true")
    kubectl("delete pod over")


def test_cp_both_ways(talker: Kubectl, tmp_path: Path) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    (there / "below").mkdir(parents=True)
    (there / "below" / "text").write_text("some texts")
    (there / "bytes").write_bytes(bytes(range(256)) * 4000)
    folder = f"/tmp/{talker.namespace}"
    # Without root a pod has one user, so chown to another one fails.
    keep = "" if os.geteuid() == 0 else " --no-preserve"
    talker(f"cp {there} talker:{folder} -c first{keep}")
    assert talker(f"exec talker -c first -- cat {folder}/below/text") == "some texts"
    talker(f"cp talker:{folder} {back} -c first")
    assert (back / "below" / "text").read_text() == "some texts"
    assert (back / "bytes").read_bytes() == (there / "bytes").read_bytes()


@pytest.mark.parametrize("target", ["pod", "service/web", "deployment/web"])
def test_port_forward(web: Kubectl, target: str) -> None:
    if target == "pod":
        target = web("get pods -l app=web -o name").split()[0]
    port = 80 if target == "service/web" else 8080
    with web.going("port-forward", target, f":{port}") as forwarding:
        output = forwarding.read_until("Forwarding from 127.0.0.1:")
        output = forwarding.read_until("\n") if not output.endswith("\n") else output
        found = re.search(r"127\.0\.0\.1:(\d+) -> 8080", output)
        assert found, output
        for _ in range(3):
            url = f"http://127.0.0.1:{found[1]}/hostname"
            with urllib.request.urlopen(url, timeout=20) as answer:
                assert answer.status == 200


def test_port_forward_to_closed_port_reports_an_error(talker: Kubectl) -> None:
    with talker.going("port-forward", "pod/talker", ":9") as forwarding:
        output = forwarding.read_until(" -> 9\n")
        found = re.search(r"127\.0\.0\.1:(\d+)", output)
        assert found
        with pytest.raises((RemoteDisconnected, ConnectionError)):
            urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/", timeout=20)
        forwarding.read_until("answers on port 9")


def test_wait_for_the_end(kubectl: Kubectl) -> None:
    kubectl("create -f -", text=pod("leaves", "sleep 1000"))
    with kubectl.going("wait", "pod/leaves", "--for=delete", "--timeout=30s") as waiting:
        kubectl("delete pod leaves --wait=false")
        assert waiting.read_to_end() == 0, waiting.output
    assert "NotFound" in kubectl.refused("wait pod/nobody --for=condition=Ready --timeout=1s")


def test_debug_in_a_pod_is_refused_for_what_it_needs(talker: Kubectl) -> None:
    output = talker.refused("debug talker --image=busybox:1 -- true")
    assert "ephemeral containers are disabled for this cluster" in output
