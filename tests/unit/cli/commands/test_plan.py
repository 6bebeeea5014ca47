"""``gangline plan``: options that contradict each other, goals, jobs that are checked."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from gangline.cli.commands.plan import NOTHING_FITS, plan_command
from gangline.cli.errors import to_command_error
from gangline.sizing.sources import timed_slice

SEVEN_BILLION = ("--params", "7B", "--seq", "4096", "--tokens", "300B")
SMALL = ("--params", "1B", "--seq", "2048", "--tokens", "20B")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(plan_command, list(arguments))


def message(result: Result) -> str:
    """Return what the user reads, whichever way the command fails."""
    if isinstance(result.exception, SystemExit):
        return result.output
    assert isinstance(result.exception, Exception)
    return str(to_command_error(result.exception))


@pytest.fixture(autouse=True)
def no_calibrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANGLINE_HOME", str(tmp_path))


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job as ``-o job`` prints it."""
    result = run(*SEVEN_BILLION, "--gpus", "16", "-o", "job", "--", "train.py")
    assert result.exit_code == 0, result.output
    file = tmp_path / "job.yaml"
    file.write_text(result.output)
    return file


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("", "the model is missing"),
        ("--params 7B --gpus 12 --nodes 2", "contradicts --nodes 2"),
        ("--params 7B --budget 100", "--budget needs --price"),
        ("--params 7B --price 0", "must be greater than 0"),
        ("--params 7B --price nan", "must be greater than 0"),
        ("--params 7B --tokens 1e400", "must be greater than 0, and finite"),
        ("--params 7B --efficiency nan", "'--efficiency': nan is not a finite number"),
        ("--params 7B --gpus 8 -o job --name My_job", "metadata.name"),
        ("--params 7B --deadline soon", "is not a duration such as 36h or 7d"),
        ("--params 7B --deadline 0d", "must be greater than 0"),
        ("--params 7B --gpu H1000", "unknown GPU 'H1000'"),
        ("--params 7B --samples 10", "need --trace"),
        ("--params 7B --input 8x3", "--input has no effect without --trace"),
        ("--params 7B --measure", "--measure has no effect without --trace"),
        ("--params 7B --like a --check b", "--like and --check name two jobs"),
        ("--params 7B --efficiency 0.4 --calibration x", "contradicts"),
        ("--params 7B --active-experts 2", "--active-experts needs --experts"),
        ("--params 7B train.py", "needs -o job"),
        ("--params 7B --layers 2 --hidden 64", "contradict 2 layers"),
        ("--params 7B --kv-heads 5 --gated --ffn 1 --untied", "--kv-heads needs --heads"),
        ("--params 7B --gated --ffn 1", "--ffn needs --layers and --hidden"),
        ("--params 7B --experts 8", "--experts needs --layers, --hidden and --heads"),
        (
            "--params 70B --layers 2 --hidden 128 --heads 2 --vocab 1000 --ffn 512",
            "--params: 70B contradict the given dimensions, which have 525K",
        ),
        (
            "--params 70B --layers 2 --hidden 128 --heads 2 --vocab 1000",
            "70B contradict 2 layers of width 128",
        ),
        ("--params 7B --vocab 128M --hidden 4096", "is not a valid integer"),
        ("--params 7B --vocab 128000000 --hidden 4096", "its embeddings alone have 524B"),
        ("--vocab 1000", "or --layers, --hidden and --heads beside --vocab"),
        (
            "--trace a.py:b --samples 10 --input 8x3x",
            "'--input': '8x3x' is not a shape such as 8x3x224x224",
        ),
        ("--trace a.py:b --samples 10 --input 0x3", "'--input'"),
        ("--params 7B --python python3", "--python has no effect without --trace"),
        ("--params 7B --as deepspeed -o json", "omit -o json"),
        ("--params 7B --calibration x --causal", "--causal contradicts"),
        ("--params 7B --name a", "--name has no effect without -o job"),
        ("--params 7B --context a", "--context has no effect without --like or --check"),
        ("--params 7B --sample-cpu 5", "is not a time such as 5ms"),
        ("--trace a.py:b --params 7B", "--trace contradicts --params"),
        ("--trace a.py:b --tokens 7B", "give --samples in place of --tokens"),
        ("--layers 2 --hidden 100 --heads 7 --vocab 10", "7 do not divide hidden 100; 5 would"),
        ("--layers 2 --hidden 96 --heads 6 --kv-heads 4", "4 do not divide the 6 heads"),
        (
            "--layers 1 --hidden 64 --heads 1 --gpus 7 --batch 3",
            "3 samples cannot be divided over 7 GPUs (no data parallelism of 7 devices divides the "
            "global batch 3); 7 can",
        ),
        ("--params 7B --gpus 64 --batch 100 --layout dp=64", "64 or 128 can"),
        ("--params 7B --gpus 64 --layout dp=3", "--layout: 3 ranks do not divide the 64 GPUs"),
        ("--params 7B --layout tp=8,tp=4", "--layout: has tp twice"),
        ("--params 7B --layout xp=8", "'xp' is unknown; a layout has dp, tp, pp"),
        ("--params 7B --layout tp=0", "tp is '0', must be a number from 1 on"),
        ("--params 7B --layout zero=4", "zero is '4', must be 0 (DDP) to 3 (FSDP)"),
        ("--params 7B --layout recompute=some", "must be none, selective, op, alternate, full"),
        ("--params 7B --gpus 64xH1000", "unknown GPU 'H1000'"),
        ("--params 7B --gpus many", "'many' is not a number of GPUs such as 64 or 64xA100-40G"),
        ("--params 7B --gpus 100000000", "--gpus 100000000: a plan has at most 1000000 GPUs"),
        ("--params 7B --nodes 9999999", "--nodes 9999999: a plan has at most 1000000 GPUs"),
        ("--params 7B --gpus-per-node 100000000", "--gpus-per-node 100000000: a plan has at most"),
        ("--params 7B --gpus 64x", "names no kind of GPU"),
        ("--params 7B --gpus 8xA100 --gpu H100", "names the kind of GPU, too"),
        ("--params 7B --gpu A100 --precision fp8", "A100-80GB does not multiply in 8 bits"),
        ("--params 7B --adapter-rank 8", "--adapter-rank has no effect without --adapter"),
    ],
)
def test_impossible_requests_are_refused_with_the_option_that_is_wrong(
    arguments: str, text: str
) -> None:
    result = run(*arguments.split())
    assert result.exit_code != 0
    assert text in message(result)


def plan_of(*arguments: str) -> Any:
    result = run(*arguments, "-o", "json")
    assert result.exit_code in (0, NOTHING_FITS), message(result)
    return json.loads(result.output)


def test_the_kind_and_the_number_of_gpus_are_given_together() -> None:
    plan = plan_of("--params", "7B", "--gpus", "64xA100-40G", "--tokens", "1T")
    assert plan["hardware"]["device"] == "A100-40GB"
    assert plan["hardware"]["devices"] == 64
    assert plan["typical_training_s"]["p50"] > plan["layouts"][0]["training_s"]["p50"]


def test_pinned_parts_of_a_layout_are_in_all_proposed_ones() -> None:
    pins = "tp=4,zero=3,mbs=3,recompute=every-3"
    plan = plan_of("--params", "7B", "--gpus", "16", "--batch", "48", "--layout", pins)
    for layout in plan["layouts"]:
        assert layout["degrees"]["tensor"] == 4
        assert layout["degrees"]["pipeline"] == 1
        assert (layout["sharding"], layout["micro_batch_samples"]) == ("FSDP", 3)
        assert layout["recompute"] == "every-3"


def test_states_of_adapters_of_a_quantised_model_fit_on_one_gpu() -> None:
    def states(*options: str) -> float:
        plan = plan_of("--params", "7B", "--gpus", "1xH200", *options)
        memory = plan["layouts"][0]["memory_bytes"]
        return sum(memory[part] for part in ("weights", "gradients", "optimizer"))

    assert states() == pytest.approx(16 * 7e9, rel=1e-4)
    assert states("--optimizer", "adam-8bit") == pytest.approx(10 * 7e9, rel=1e-4)
    assert states("--offload") == pytest.approx(4 * 7e9, rel=1e-4)
    adapters = 16 * 32 * 16 * (6 * 4096 + 2 * 4096 + 2 * (4096 + 16500))
    assert states("--adapter", "lora") == pytest.approx(2 * 7e9 + adapters, rel=0.01)
    assert states("--adapter", "qlora") == pytest.approx(0.516 * 7e9 + adapters, rel=0.01)


def test_products_in_8_bits_are_faster_but_not_twice() -> None:
    steps = [
        plan_of(*SEVEN_BILLION, "--gpus", "8xH100", "--precision", precision)["layouts"][0][
            "step_s"
        ]["p50"]
        for precision in ("mixed", "fp8")
    ]
    assert 1.2 < steps[0] / steps[1] < 2


def test_host_memory_grows_with_the_processes_and_with_an_offloaded_optimizer() -> None:
    def needed(*options: str) -> float:
        return float(plan_of("--params", "70B", *options)["node_memory_bytes"])

    # Eight processes of CUDA were killed at 36 GiB.
    assert needed("--gpus", "512xH100") > 8 * 8e9
    offloaded = needed("--gpus", "64xH100", "--offload") - needed("--gpus", "64xH100")
    assert offloaded == pytest.approx(12 * 70e9 / 8, rel=0.01)


def test_the_table_says_whether_it_fits_how_long_it_takes_and_draws_both() -> None:
    result = run(*SEVEN_BILLION, "--gpus", "64xH100", "--price", "2")
    lines = result.output.splitlines()
    (fits,) = [line for line in lines if line.startswith("Fits")]
    assert fits.split()[1] == "yes"
    used, limit = float(fits.split()[-4]), 80
    assert fits.count("█") == round(used / limit * 32)
    assert any("as measured by tuned public runs" in line for line in lines)
    assert any(line.endswith(", typical") for line in lines)
    curve = [line for line in lines if " GPUs  █" in line]
    assert [int(line.partition(" GPUs")[0].split()[-1]) for line in curve] == [16, 32, 64, 128, 256]
    bars = [line.count("█") for line in curve]
    assert bars == sorted(bars, reverse=True)
    assert "<- this plan" in curve[2]
    unfit = run("--params", "70B", "--gpus", "8xH100").output
    assert f"no  {'█' * 32}" in unfit


def test_a_page_needs_nothing_else_and_has_the_memory_and_the_curve(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    assert run(*SEVEN_BILLION, "--gpus", "64xH100", "--html", str(page)).exit_code == 0
    html = page.read_text()
    assert "http" not in html
    assert "<script" not in html
    assert html.count("<svg") == 2
    assert "64 GPUs (this plan)" in html
    assert "limit: 80 GB" in html


def test_a_folder_of_a_model_is_planned_and_errors_name_its_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64,
              "num_attention_heads": 2, "intermediate_size": 128, "vocab_size": 100,
              "max_position_embeddings": 128}  # fmt: skip
    file.write_text(json.dumps(config))
    assert plan_of("--model", str(tmp_path), "--gpus", "1")["model"]["vocab"] == 100
    file.write_text(json.dumps(config | {"hidden_size": "wide"}))
    assert "config.json: hidden_size: is 'wide'" in message(run("--model", str(tmp_path)))


def test_a_recorded_plan_keeps_its_adapters(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    options = ("--params", "70B", "--gpus", "1xH100", "--adapter", "qlora", "--adapter-rank", "8")
    file.write_text(run(*options, "-o", "job").output)
    result = run("-f", str(file))
    assert result.exit_code == 0, result.output


def test_dimensions_that_agree_with_a_rounded_number_of_parameters_are_planned() -> None:
    """Llama 2 7B has 6,738,415,616 parameters (its model card says 7B)."""
    result = run(
        "--params", "7B", "--layers", "32", "--hidden", "4096", "--heads", "32", "--ffn", "11008",
        "--gated", "--untied", "--vocab", "32000", "--seq", "4096", "-o", "json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    plan = json.loads(result.output)
    assert plan["model"]["parameters"] == 6_738_415_616
    assert "6.74B parameters, as the dimensions give, not 7B" in plan["assumptions"]


def test_a_model_by_its_size_has_a_vocabulary_that_is_reported() -> None:
    result = run(*SEVEN_BILLION, "--gpus", "8", "-o", "json")
    plan = json.loads(result.output)
    assert plan["model"]["vocab"] == 128_256
    layout = plan["layouts"][0]
    # Logits and their gradient, both in 16 and in 32 bits.
    logits = layout["micro_batch_samples"] * 4096 * 128_256 * (2 + 2 + 4 + 4)
    assert layout["memory_bytes"]["logits"] == logits / layout["degrees"]["tensor"]
    assert any("a vocabulary of 128,256 tokens" in each for each in plan["assumptions"])
    table = " ".join(run(*SEVEN_BILLION, "--gpus", "8").output.split())
    assert "Assumed a vocabulary of 128,256 tokens" in table
    assert "Assumed 32 layers, a width of 4096, 32 heads" in table


def test_a_given_vocabulary_replaces_the_assumed_one() -> None:
    plan = json.loads(run(*SEVEN_BILLION, "--vocab", "32000", "-o", "json").output)
    assert plan["model"]["vocab"] == 32_000
    assert plan["model"]["parameters"] == 7e9
    assert not any("a vocabulary" in each for each in plan["assumptions"])


def test_dimensions_without_a_vocabulary_get_one_that_is_reported() -> None:
    shape = ("--layers", "32", "--hidden", "4096", "--heads", "32")
    plan = json.loads(run(*shape, "-o", "json").output)
    assert plan["model"]["vocab"] == 128_256
    assert any("a vocabulary of 128,256 tokens" in each for each in plan["assumptions"])


def test_an_unknown_architecture_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "mamba"}))
    result = run("--config", str(file))
    assert "'mamba' is not a known architecture; known: bloom" in message(result)


def test_the_fewest_gpus_that_meet_the_deadline_are_chosen() -> None:
    result = run(*SMALL, "--deadline", "2d", "-o", "json")
    assert result.exit_code == 0, result.output
    plan = json.loads(result.output)
    devices = plan["hardware"]["devices"]
    assert plan["layouts"][0]["training_s"]["p50"] <= 2 * 86_400
    half = run(*SMALL, "--deadline", "2d", "-o", "json", "--gpus", str(devices // 2))
    assert half.exit_code == NOTHING_FITS
    assert f"{devices} would meet it" in json.loads(half.output)["misses"][0]


def test_a_deadline_that_nothing_meets_names_the_shortest_training_and_fewer_tokens() -> None:
    result = run("--params", "1B", "--tokens", "300B", "--deadline", "1m")
    assert result.exit_code == NOTHING_FITS
    text = " ".join(result.output.split())
    assert "the deadline of 0.0167 h: " in text
    assert "the shortest is" in text
    assert "of the tokens would meet it" in text


def test_a_budget_that_is_too_small_names_a_price_and_tokens_that_would_do() -> None:
    result = run(*SEVEN_BILLION, "--gpus", "8", "--price", "2", "--budget", "100")
    assert result.exit_code == NOTHING_FITS
    assert "of the tokens, or for all of them at" in " ".join(result.output.split())


def test_the_table_has_at_most_80_columns_and_says_what_the_ranges_are() -> None:
    for size, gpus in (("7B", "64"), ("405B", "16384")):
        result = run("--params", size, "--gpus", gpus, "--price", "2")
        assert max(map(len, result.output.splitlines())) <= 80
        for name in ("Best ", "Limit ", "Memory ", "Ranges     p10 - p50 - p90"):
            assert name in result.output


def test_a_planned_job_passes_its_own_check(job: Path) -> None:
    result = run("-f", str(job))
    assert result.exit_code == 0, result.output
    assert "too small" not in result.output
    assert "wasteful" not in result.output


@pytest.mark.parametrize(
    ("change", "resource", "verdict"),
    [
        ({"memory": "2Gi"}, "memory of a pod", "too small"),
        ({"memory": "4Ti"}, "memory of a pod", "wasteful"),
        ({"cpu": "2"}, "CPUs of a pod", "too small"),
        ({"cpu": "1000"}, "CPUs of a pod", "wasteful"),
    ],
)
def test_resources_of_the_wrong_size_are_named(
    job: Path, change: dict[str, str], resource: str, verdict: str
) -> None:
    manifest: dict[str, Any] = yaml.safe_load(job.read_text())
    for spec in manifest["spec"]["pytorchReplicaSpecs"].values():
        spec["template"]["spec"]["containers"][0]["resources"]["limits"].update(change)
    job.write_text(yaml.safe_dump(manifest))
    result = run("-f", str(job), "-o", "json")
    assert result.exit_code == (NOTHING_FITS if verdict == "too small" else 0), result.output
    verdicts = {each["resource"]: each["verdict"] for each in json.loads(result.output)}
    assert verdicts[resource] == verdict
    assert verdicts["GPUs"] == "fits"


def test_a_job_whose_gpus_cannot_hold_the_model_is_too_small(job: Path) -> None:
    result = run("-f", str(job), "--params", "400B")
    assert result.exit_code == NOTHING_FITS
    assert "no layout fits into 16 x H100-80GB" in " ".join(result.output.split())


def test_a_job_without_gpus_cannot_be_checked(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}))
    assert "requests no GPUs" in message(run("-f", str(file), "--params", "1B"))


@pytest.mark.parametrize(
    ("gpus", "pods", "pod_gpus"),
    [(6, 1, 6), (12, 2, 6), (13, 13, 1), (16, 2, 8), (20, 4, 5), (36, 6, 6)],
)
def test_a_job_has_exactly_the_gpus_of_its_plan(
    gpus: int, pods: int, pod_gpus: int, tmp_path: Path
) -> None:
    result = run(*SEVEN_BILLION, "--gpus", str(gpus), "-o", "job")
    assert result.exit_code == 0, result.output
    spec = yaml.safe_load(result.output)["spec"]
    replicas = spec["pytorchReplicaSpecs"].values()
    assert sum(each["replicas"] for each in replicas) == pods
    assert spec["nprocPerNode"] == str(pod_gpus)
    for each in replicas:
        resources = each["template"]["spec"]["containers"][0]["resources"]
        assert resources["limits"]["nvidia.com/gpu"] == pod_gpus
        assert resources["requests"]["cpu"] == 3 * pod_gpus
    file = tmp_path / "job.yaml"
    file.write_text(result.output)
    checked = json.loads(run("-f", str(file), "-o", "json").output)
    assert checked[0] | {"reason": ""} == {
        "resource": "GPUs", "requested": str(gpus), "needed": str(gpus), "verdict": "fits",
        "reason": "",
    }  # fmt: skip


def test_processors_are_in_the_table_and_in_the_document() -> None:
    options = (*SEVEN_BILLION, "--gpus", "16", "--sample-cpu", "500ms")
    plan = json.loads(run(*options, "-o", "json").output)
    workers = plan["host"]["device_loader_workers"]
    assert workers > 1
    assert plan["host"]["node_cpus"] == 8 * (workers + 2)
    assert plan["host"]["sample_cpu_s"] == 0.5
    assert f"{workers + 2} cores for each GPU" in run(*options).output


def test_a_length_of_samples_replaces_that_of_a_planned_job(job: Path) -> None:
    def gpu_memory(*options: str) -> str:
        found = json.loads(run("-f", str(job), "-o", "json", *options).output)
        return next(each["needed"] for each in found if each["resource"] == "memory of a GPU")

    assert gpu_memory("--seq", "4096") == gpu_memory()
    assert gpu_memory("--seq", "16384") != gpu_memory()


def test_the_peak_is_that_of_the_format_of_the_training() -> None:
    options = (*SEVEN_BILLION, "--gpus", "64", "--precision", "fp32", "-o", "json")
    usual = json.loads(run(*options).output)
    assert usual["hardware"]["peak_flops_per_s"] == 67e12
    faster = json.loads(run(*options, "--peak", "134T").output)
    times = [each["layouts"][0]["step_parts_s"]["compute"] for each in (usual, faster)]
    # Operations between products are bound by the memory: they are not faster.
    assert 1.9 * times[1] < times[0] < 2 * times[1]


def test_the_help_of_the_calibration_counts_its_steps() -> None:
    text = CliRunner().invoke(plan_command, ["calibrate", "--help"]).output
    assert f"take {timed_slice.STEPS * len(timed_slice.sample_counts(4))} steps" in text


def test_a_damaged_record_of_a_plan_is_named(job: Path) -> None:
    job.write_text(job.read_text().replace("layers", "storeys"))
    assert "gangline.dev/planned-training: is damaged" in message(run("-f", str(job)))
