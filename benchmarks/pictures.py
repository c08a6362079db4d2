"""Small SVG pictures, written by hand so that the same figures always give the same file."""

import math
from html import escape

OURS, OTHER, WHISKER = "#b5651d", "#6a8caf", "#222"
LINES = ["#6a8caf", "#2f5d8a", "#4c9f70", "#b5651d"]


def _svg(width: int, height: int, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
    style = 'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head + style, *parts, "</svg>", ""])


def bars(labels: list[str], times: list[tuple], memory: list[float], is_ours: list[bool]) -> str:
    """Times (with their range) to the left, memory to the right; ours in another colour."""
    left, wide, gap, tall = 300, 330, 70, 20
    most_ms, most_mb = max(high for _, _, high in times), max(max(memory), 1)
    parts = [f'<text x="{left}" y="16">ms/step, with range</text>']
    parts.append(f'<text x="{left + wide + gap}" y="16">memory over the bare model, MB</text>')
    for row, (label, (middle, low, high), megabytes, ours) in enumerate(
        zip(labels, times, memory, is_ours, strict=True)
    ):
        y = 26 + tall * row
        colour = OURS if ours else OTHER
        parts.append(f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{escape(label)}</text>')
        for x, value, most in ((left, middle, most_ms), (left + wide + gap, megabytes, most_mb)):
            width = max(wide * value / most, 0)
            parts.append(f'<rect x="{x}" y="{y}" width="{width:.1f}" height="15" fill="{colour}"/>')
            parts.append(f'<text x="{x + wide + 6}" y="{y + 12}">{value:.0f}</text>')
        ends = [left + wide * value / most_ms for value in (low, high)]
        parts.append(
            f'<line x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" y1="{y + 7.5}" y2="{y + 7.5}" stroke="{WHISKER}" '
            'stroke-width="2"/>'
        )
    return _svg(left + 2 * wide + gap + 60, 36 + tall * len(labels), parts)


def lines(curves: dict[str, list[tuple]], x_label: str, y_label: str) -> str:
    """Curves on logarithmic axes."""
    width, height, left, bottom = 640, 340, 60, 50
    xs = [math.log10(x) for points in curves.values() for x, _ in points]
    ys = [math.log10(y) for points in curves.values() for _, y in points]
    low_y, high_y = math.floor(min(ys)), math.ceil(max(ys))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - min(xs)) / (max(xs) - min(xs)) if max(xs) > min(xs) else 0.5
        up = (math.log10(y) - low_y) / max(high_y - low_y, 1)
        return left + across * (width - left - 150), height - bottom - up * (height - bottom - 30)

    parts = [f'<text x="{left}" y="16">{escape(y_label)}</text>']
    parts.append(f'<text x="{left}" y="{height - 8}">{escape(x_label)}</text>')
    for power in range(low_y, high_y + 1):
        _, y = place(10 ** min(xs), 10.0**power)
        parts.append(f'<line x1="{left}" x2="{width - 150}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for x in sorted({x for points in curves.values() for x, _ in points}):
        across, _ = place(x, 10.0**low_y)
        parts.append(f'<text x="{across:.1f}" y="{height - bottom + 18}" text-anchor="middle">{x:,}</text>')
    # Names stand at the curves' ends, moved apart where these meet.
    free = math.inf
    for number, (name, points) in sorted(enumerate(curves.items()), key=lambda item: item[1][1][-1][1]):
        colour = LINES[number % len(LINES)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        across, y = place(*points[-1])
        free = min(y, free - 14)
        parts.append(f'<text x="{across + 6:.1f}" y="{free + 4:.1f}" fill="{colour}">{escape(name)}</text>')
    return _svg(width, height, parts)


def panels(series: dict[str, list[list[float]]], unit: str, columns: int = 4) -> str:
    """A small picture for each name, all to one scale: how its lines go away from where they begin, with their ends."""
    wide, tall, gap, left, top = 190, 70, 34, 20, 30
    moved = {name: [[value - line[0] for value in line] for line in some] for name, some in series.items()}
    most = max((abs(value) for some in moved.values() for line in some for value in line), default=0) or 1
    parts = [f'<text x="{left}" y="16">{escape(unit)}; each frame is from {-most:.3g} to {most:.3g}</text>']
    for number, (name, some) in enumerate(moved.items()):
        row, column = divmod(number, columns)
        x, middle = left + column * (wide + gap), top + row * (tall + gap) + tall / 2 + 14
        parts.append(f'<text x="{x}" y="{middle - tall / 2 - 4:.1f}">{escape(name)}</text>')
        parts.append(
            f'<rect x="{x}" y="{middle - tall / 2:.1f}" width="{wide}" height="{tall}" fill="none" stroke="#ddd"/>'
        )
        parts.append(f'<line x1="{x}" x2="{x + wide}" y1="{middle:.1f}" y2="{middle:.1f}" stroke="#ddd"/>')
        for line, colour in zip(some, LINES, strict=False):
            points = [
                (x + wide * at / max(len(line) - 1, 1), middle - tall / 2 * value / most)
                for at, value in enumerate(line)
            ]
            path = " ".join(f"{across:.1f},{up:.1f}" for across, up in points)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        end = max((line[-1] for line in some), key=abs)
        parts.append(f'<text x="{x + wide}" y="{middle - tall / 2 - 4:.1f}" text-anchor="end">{end:+.2g}</text>')
    rows = math.ceil(len(moved) / columns)
    return _svg(left + columns * (wide + gap), top + rows * (tall + gap) + 20, parts)
