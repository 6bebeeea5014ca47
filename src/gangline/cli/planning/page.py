"""A plan as a page of its own: the answers, the memory of each layout, the time over the GPUs.

The page needs no other file and no script. Its colours follow the browser's light or dark mode.
"""

from html import escape
from typing import TYPE_CHECKING

from gangline.cli.planning.table import plan_table, span_middle

if TYPE_CHECKING:
    from gangline.sizing.curve import CurvePoint
    from gangline.sizing.plan import Plan
    from gangline.sizing.search import Candidate

_STYLE = """
:root { color-scheme: light dark; --line: #8885; --full: #1a73e8; --range: #1a73e888;
  --bad: #d93025 }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse } td, th { padding: .2rem .8rem; text-align: left }
tr { border-bottom: 1px solid var(--line) } pre { overflow-x: auto }
svg { width: 100%; height: auto } svg text { fill: currentColor; font-size: 12px }
"""
_WIDTH, _ROW, _LABEL, _AFTER = 860, 26, 170, 200
_PARTS = ("weights", "gradients", "optimizer", "working", "activations", "logits", "runtime")
_SHADES = ("#0b57d0", "#1a73e8", "#4f98f5", "#8ab4f8", "#188038", "#e37400", "#80868b")


def plan_page(plan: "Plan", curve: "tuple[CurvePoint, ...]") -> str:
    """Return the page."""
    memory = [choice.candidate for choice in plan.choices]
    if plan.nearest:
        memory.append(plan.nearest)
    title = f"{plan.request.devices} x {plan.request.device.name}: plan of a training"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}'
        f"</title><style>{_STYLE}</style></head><body>\n<h1>{escape(title)}</h1>\n"
        f"<p>{'It fits.' if plan.fits else 'It does not fit.'}</p>\n"
        f"<h2>Memory of a GPU</h2>\n{_memory(memory, plan.request.device.memory_bytes)}\n"
        f"<h2>Time over the number of GPUs</h2>\n{_times(plan, curve)}\n"
        f"<h2>Plan</h2>\n<pre>{escape(plan_table(plan))}</pre>\n</body></html>\n"
    )


def _memory(candidates: "list[Candidate]", limit: float) -> str:
    most = max(limit, *(candidate.memory.high for candidate in candidates))
    scale = (_WIDTH - _LABEL - _AFTER) / most
    rows = []
    for index, candidate in enumerate(candidates):
        top, left = index * _ROW, float(_LABEL)
        rows.append(_text(0, top, candidate.layout.title))
        for part, shade in zip(_PARTS, _SHADES, strict=True):
            size = getattr(candidate.memory, part)
            name = f"{part}: {size / 1e9:.1f} GB"
            rows.append(_bar(left, top, size * scale, shade, name))
            left += size * scale
        over = candidate.memory.high > limit
        figures = (
            f"{candidate.memory.total / 1e9:.1f} GB, at most {candidate.memory.high / 1e9:.1f}"
        )
        rows.append(_text(_LABEL + most * scale + 8, top, figures, bad=over))
    height = len(candidates) * _ROW
    at = _LABEL + limit * scale
    rows.append(
        f'<line x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{height}" stroke="var(--bad)" '
        f'stroke-dasharray="4 3"><title>limit: {limit / 1e9:.0f} GB</title></line>'
    )
    legend = "".join(
        f'<span style="color:{shade}">■</span> {part} &nbsp;'
        for part, shade in zip(_PARTS, _SHADES, strict=True)
    )
    return f"{_svg(rows, height)}\n<p>{legend} <b>┆</b> the limit, {limit / 1e9:.0f} GB</p>"


def _times(plan: "Plan", curve: "tuple[CurvePoint, ...]") -> str:
    times = [point.training_s.high for point in curve if point.training_s]
    if not times:
        return "<p>No number of GPUs that was tried fits.</p>"
    scale = (_WIDTH - _LABEL - _AFTER) / max(times)
    rows = []
    for index, point in enumerate(curve):
        top = index * _ROW
        here = " (this plan)" if point.devices == plan.request.devices else ""
        rows.append(_text(0, top, f"{point.devices} GPUs{here}"))
        if point.training_s is None:
            rows.append(_text(_LABEL, top, "does not fit, or cannot be divided", bad=True))
            continue
        low, middle, high = point.training_s.low, point.training_s.middle, point.training_s.high
        rows.append(_bar(_LABEL, top, middle * scale, "var(--full)", span_middle(point.training_s)))
        left = _LABEL + low * scale
        rows.append(_bar(left, top, (high - low) * scale, "var(--range)", "80 % range"))
        cost = f", costs {point.cost.middle:,.0f}" if point.cost else ""
        rows.append(_text(_LABEL + high * scale + 8, top, f"{span_middle(point.training_s)}{cost}"))
    return _svg(rows, len(curve) * _ROW)


def _svg(rows: list[str], height: int) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(rows)}</svg>'


def _bar(left: float, top: float, width: float, colour: str, name: str) -> str:
    return (
        f'<rect x="{left:.1f}" y="{top + 4}" width="{width:.1f}" height="{_ROW - 8}" '
        f'fill="{colour}"><title>{escape(name)}</title></rect>'
    )


def _text(left: float, top: float, text: str, *, bad: bool = False) -> str:
    colour = ' style="fill:var(--bad)"' if bad else ""
    return f'<text x="{left:.1f}" y="{top + _ROW - 9}"{colour}>{escape(text)}</text>'
