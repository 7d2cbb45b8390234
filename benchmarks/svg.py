"""Small plots as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _LABELS, _BAR, _MARGIN = 560, 190, 20, 28
_COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1")


def bars(title: str, values: Mapping[str, float], unit: str) -> str:
    """Draw horizontal bars, one per value, each with its figure."""
    most = max(values.values()) or 1.0
    room = _WIDTH - _LABELS - 80
    parts = [_text(8, 18, title, bold=True)]
    for number, (name, value) in enumerate(values.items()):
        top, length = _MARGIN + number * _BAR, value / most * room
        parts.append(_text(_LABELS - 6, top + 13, name, anchor="end"))
        parts.append(
            f'<rect x="{_LABELS}" y="{top + 3}" width="{length:.1f}" height="13" fill="{_COLOURS[0]}"/>'
        )
        parts.append(_text(_LABELS + length + 5, top + 13, f"{value:.3g} {unit}"))
    return _whole(_MARGIN + len(values) * _BAR + 8, parts)


def lines(title: str, xs: Sequence[float], series: Mapping[str, Sequence[float]], about_x: str) -> str:
    """Draw a line for each series, from zero, with its last value next to its name."""
    height, left, right = 220, 48, _WIDTH - 150
    most = max(max(ys) for ys in series.values()) or 1.0
    bottom = height - 30
    parts = [_text(8, 18, title, bold=True), _text((left + right) / 2, height - 8, about_x, anchor="middle")]
    parts += _axis(left, right, bottom, most, xs)
    for number, (name, ys) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        points = [
            (left + (x - xs[0]) / ((xs[-1] - xs[0]) or 1) * (right - left), bottom - y / most * (bottom - 34))
            for x, y in zip(xs, ys, strict=True)
        ]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(_text(right + 6, points[-1][1] + 4, f"{name}: {ys[-1]:.0f}", colour=colour))
    return _whole(height, parts)


def _axis(left: float, right: float, bottom: float, most: float, xs: Sequence[float]) -> list[str]:
    return [
        f'<path d="M{left} 34V{bottom}H{right}" fill="none" stroke="#888"/>',
        _text(left - 5, 40, f"{most:.0f}", anchor="end"),
        _text(left - 5, bottom + 2, "0", anchor="end"),
        _text(left, bottom + 14, f"{xs[0]:.0f}", anchor="middle"),
        _text(right, bottom + 14, f"{xs[-1]:.0f}", anchor="middle"),
    ]


def _text(
    x: float, y: float, text: str, anchor: str = "start", bold: bool = False, colour: str = "#333"
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{weight}>{escape(text)}</text>'
    )


def _whole(height: float, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}" '
        'font-family="sans-serif" font-size="11">'
    )
    ground = f'<rect width="{_WIDTH}" height="{height:.0f}" fill="#fff"/>'
    return "\n".join([head, ground, *parts, "</svg>", ""])
