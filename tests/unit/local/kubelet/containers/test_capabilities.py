"""The bounding set that a security context asks for."""

from gangline.local.kubelet.containers.plan import (
    DEFAULT,
    NAMES,
    bounding_set,
    capability_numbers,
)


def test_all_comes_before_single_names() -> None:
    assert bounding_set([], []) == DEFAULT
    assert bounding_set([], ["ALL"]) == frozenset()
    assert bounding_set(["ALL"], ["SYS_ADMIN"]) == set(NAMES) - {"SYS_ADMIN"}
    assert bounding_set(["NET_ADMIN"], ["all"]) == {"NET_ADMIN"}
    assert bounding_set(["NET_ADMIN"], ["ALL", "NET_ADMIN"]) == frozenset()


def test_names_may_have_the_prefix_of_the_kernel_and_unknown_ones_have_no_effect() -> None:
    assert bounding_set(["CAP_SYS_PTRACE", "FLY"], ["cap_chown"]) == (
        (DEFAULT | {"SYS_PTRACE"}) - {"CHOWN"}
    )


def test_numbers_are_those_of_the_kernel() -> None:
    names = {"CHOWN", "SYS_ADMIN", "CHECKPOINT_RESTORE", "NET_ADMIN"}
    assert capability_numbers(names) == (0, 12, 21, 40)
