"""Bars as SVG, drawn by hand: a title, a bar a line, its figure."""

from collections.abc import Sequence
from html import escape

_WIDTH, _LABELS, _ROW, _TOP = 760, 300, 26, 44
_OURS, _LINES = "#2f6f9f", "#a9b4bd"


def bars(title: str, unit: str, shown: Sequence[tuple[str, float]], digits: int) -> str:
    """One bar for each label; agentq's own have a colour of their own."""
    longest = max((value for _, value in shown), default=0.0) or 1.0
    room = _WIDTH - _LABELS - 110
    height = _TOP + _ROW * len(shown) + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="26" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    for number, (label, value) in enumerate(shown):
        top, length = _TOP + _ROW * number, round(room * value / longest, 1)
        colour = _OURS if "agentq" in label or label.startswith("enqueue") else _LINES
        middle = top + _ROW / 2 + 2
        lines += [
            f'<text x="{_LABELS - 8}" y="{middle:g}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{_LABELS}" y="{top}" width="{length:g}" height="{_ROW - 8}" fill="{colour}"/>',
            f'<text x="{_LABELS + length + 6:g}" y="{middle:g}">{value:,.{digits}f} {escape(unit)}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])
