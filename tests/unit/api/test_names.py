"""Validation of names."""

import pytest

from gangline.api import names


@pytest.mark.parametrize("name", ["a", "a-b", "1a", "x" * 63])
def test_a_dns_label_is_accepted(name):
    assert names.validate_dns_label(name) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("", "empty"), ("A_b", "'a-b'"), ("-a", "'a'"), ("a.b", "'a-b'"), ("x" * 64, "at most 63"),
        ("ä", "lower-case"), ("a\n", "lower-case"),
    ],
)  # fmt: skip
def test_a_wrong_dns_label_is_refused_with_advice(name, expected):
    assert expected in " ".join(names.validate_dns_label(name))


def test_a_service_name_starts_with_a_letter():
    assert names.validate_service_name("1a").remedy.endswith("'job-1a'")
    assert names.validate_service_name("a1") is None


def test_job_name_too_long_with_suffix_is_refused_with_the_name_and_the_limit():
    complaint = names.validate_job_name("j" * 60, {"Master": 1, "Worker": 100})
    assert f"'{'j' * 60}-worker-99' has 70 characters" in complaint.problem
    assert complaint.remedy == "use at most 53 characters"
    assert names.validate_job_name("j" * 53, {"Master": 1, "Worker": 100}) is None


def test_malformed_job_name_of_any_length_is_refused():
    assert (
        names.validate_job_name("Job_" + "x" * 100, {"Worker": 1}).problem == "is not a DNS label"
    )
    assert names.validate_job_name("1job", {}).problem == "does not start with a letter"
    assert names.validate_job_name("", {"Worker": 1}).problem == "is empty"
    assert names.validate_job_name("x" * 62 + "-y", {}) is not None


@pytest.mark.parametrize("key", ["a", "app.kubernetes.io/name", "A_b.c", "x" * 63])
def test_a_label_key_is_accepted(key):
    assert names.validate_label_key(key) is None


@pytest.mark.parametrize("key", ["", "/a", "a/", "A.b/c", "-a", "a b", "x" * 64, "a/b/c"])
def test_a_wrong_label_key_is_refused(key):
    assert names.validate_label_key(key)


@pytest.mark.parametrize(
    ("value", "right"), [("", True), ("a.b_c", True), ("a b", False), ("-", False)]
)
def test_a_label_value(value, right):
    assert (names.validate_label_value(value) is None) == right


@pytest.mark.parametrize(
    ("name", "right"), [("A", True), ("_a.b-c", True), ("1a", False), ("", False), ("a=b", False)]
)
def test_an_env_name(name, right):
    assert (names.validate_env_name(name) is None) == right


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("http", True),
        ("a-1", True),
        ("80", False),
        ("a--b", False),
        ("x" * 16, False),
        ("A", False),
    ],
)
def test_a_port_name(name, right):
    assert (names.validate_port_name(name) is None) == right


def test_a_subdomain_may_have_dots():
    assert names.validate_dns_subdomain("a.b-c.d") is None
    assert names.validate_dns_subdomain("a..b").problem == "is not a DNS name"
    assert (
        names.validate_dns_subdomain(".".join(["a" * 50] * 6)).remedy
        == "use at most 253 characters"
    )
    assert names.validate_dns_subdomain("").problem == "is empty"


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("sweep-1", "sweep"),
        ("sweep-12-lr0.1", "sweep"),
        ("train.7", "train"),
        ("nightly-x2b5w", "nightly"),
        ("resnet50", "resnet50"),
        ("7", "7"),
    ],
)
def test_names_that_differ_in_numbers_are_of_one_family(name, stem):
    assert names.family_of("d", name, "q", 4) == f"d/{stem}/q/4"
