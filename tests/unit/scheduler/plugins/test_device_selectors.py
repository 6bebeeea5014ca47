"""Selectors of devices: the forms of CEL that classes and claims use in practice."""

import pytest

from gangline.api.quantity import parse_quantity
from gangline.scheduler.plugins.device_selectors import (
    DeviceSelectorError,
    SelectableDevice,
    Version,
    domains,
    parse_selector,
)

D = "gpu.example.com"
VALUES = {
    "model": "H100 SXM",
    "numa": 1,
    "mig": False,
    "driverVersion": Version.parse("1.10.0-rc.2"),
    f"other.example.com/{'switch'}": "s1",
    "links": ["a", "b"],
}
DEVICE = SelectableDevice(D, domains(VALUES, D), domains({"memory": parse_quantity("80Gi")}, D))
OWN = f'device.attributes["{D}"]'
MEMORY = f"device.capacity['{D}'].memory"


@pytest.mark.parametrize(
    ("expression", "selected"),
    [
        (f'device.driver == "{D}"', True),
        ("device.driver == 'other'", False),
        (f'device.driver == "{D}" && {OWN}.model.startsWith("H100")', True),
        (f'{OWN}.model in ["A100", "H100 SXM"]', True),
        (f"{OWN}.model.lowerAscii().matches('^h100.*sxm$')", True),
        (f"{OWN}.numa >= 1 && {OWN}.numa < 2 && !{OWN}.mig", True),
        (f"{OWN}.numa == -1", False),
        (f"{OWN}.numa == true", False),
        (f'{MEMORY}.compareTo(quantity("40Gi")) >= 0', True),
        (f'{MEMORY}.isGreaterThan(quantity("80Gi"))', False),
        (f'{MEMORY} == quantity("81920Mi")', True),
        (f'{OWN}.driverVersion.isLessThan(semver("1.10.0"))', True),
        (f'{OWN}.driverVersion.compareTo(semver("1.9.3")) > 0', True),
        (f'{OWN}.driverVersion.compareTo(semver("1.10.0-rc.10")) < 0', True),
        ('device.attributes["other.example.com"].switch == "s1"', True),
        ('"switch" in device.attributes["other.example.com"]', True),
        ('"switch" in device.attributes["none.example.com"]', False),
        (f"has({OWN}.model) && !has({OWN}.none)", True),
        (f'"b" in {OWN}.links && size({OWN}.links) == 2', True),
        (f"{OWN}.none == 1", False),
        (f"{OWN}.none != 1", False),
        (f"{OWN}.none == 1 || {OWN}.numa == 1", True),
        (f"!({OWN}.none == 1 && {OWN}.numa == 2)", True),
        (f'cel.bind(own, {OWN}, own.model == "H100 SXM" && own.numa == 1)', True),
        (r"""device.driver == 'a\'b' || r'\d' == '\\d'""", True),
        (r'device.driver == "gpu\x2eexample.com"', True),
        (f'device.driver == "{D}"\n  && !(\n{OWN}.mig)', True),
        (f"!{OWN}.mig == true", True),
        (f"{OWN}.model", False),
    ],
)
def test_expression_selects_as_in_cel(expression: str, selected: bool) -> None:
    assert parse_selector(expression)(DEVICE) is selected


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("device.driver.split('.')[0] == 'gpu'", r"split\('.'\).* is not supported"),
        (r"device.driver == '\d'", "is not supported"),
        ("object.name == 'x'", "'object' is not supported"),
        ("device.driver ==", "is not valid"),
        ("device.driver == 'x') ", "is not valid: unmatched"),
        ("device.driver == 1.5", "'1.5' is not supported"),
        ("device.driver == 'a' ? true : false", r"'\?' is not supported"),
        ("device.driver == 'a' and true", "'and' is not supported"),
        ("device.driver # x", "'#' is not supported"),
        ("device.attributes['a'].b.compareTo()", "compareTo.* is not supported"),
        ("has(device)", "'has.*' is not supported"),
        ("1 < 2 < 3", "'1 < 2 < 3' is not supported"),
        ("[1].all(x, x > 0)", "all.* is not supported"),
        ("__import__('os')", "__import__.* is not supported"),
        ("!" * 100 + "true", "is nested too deeply"),
        ("(" * 300 + "true" + ")" * 300, "is not valid"),
        ("-" * 5000 + "1", "is n"),
        ("true" + " " * 11_000, "is longer than"),
    ],
)
def test_unsupported_expression_is_refused_with_what_it_uses(expression: str, why: str) -> None:
    with pytest.raises(DeviceSelectorError, match=why):
        parse_selector(expression)
