"""Draws docs/step.svg, the picture of how_it_works.md: python docs/draw_step.py > docs/step.svg."""

COLOURS = {"a": "#9ecae1", "b": "#fdd49e", "c": "#c7e9c0", "plain": "#eeeeee"}
#: Of a step on one rank: lane, what, colour (of a bucket), start and end in units of time.
SPANS = [
    ("compute", "forward 1", "a", 0, 3),
    ("compute", "forward 2", "b", 3, 6),
    ("compute", "forward 3", "c", 6, 9),
    ("compute", "backward 3", "c", 9, 14),
    ("compute", "backward 2", "b", 14, 19),
    ("compute", "backward 1", "a", 19, 24),
    ("link", "reduce 3", "c", 14, 17),
    ("link", "reduce 2", "b", 19, 22),
    ("link", "reduce 1", "a", 24, 27),
    ("compute", "step", "plain", 27, 29),
    ("link", "gather 1", "a", 29, 32),
    ("link", "gather 2", "b", 32, 35),
    ("link", "gather 3", "c", 35, 38),
    ("compute", "forward 1", "a", 32, 35),
    ("compute", "forward 2", "b", 35, 38),
    ("compute", "forward 3", "c", 38, 41),
]
LANES = {"compute": 60, "link": 110}
LEFT, UNIT, HEIGHT = 90, 21, 36
WIDTH = LEFT + int(42 * UNIT) + 10


def box(x: float, y: float, width: float, text: str, colour: str, height: float = HEIGHT) -> str:
    shape = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{COLOURS[colour]}" stroke="#555"/>'
    return shape + label(x + width / 2, y + height / 2 + 4, text)


def label(x: float, y: float, text: str, anchor: str = "middle", style: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{style}>{text}</text>'


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="#333" marker-end="url(#tip)"/>'


def timeline() -> list[str]:
    """A step of a model of three blocks, a bucket each, with overlap_gather."""
    bold = ' font-weight="bold"'
    parts = [label(10, 30, "In time: one rank, three blocks with a bucket each, overlap_gather", "start", bold)]
    parts += [label(LEFT - 10, y + HEIGHT / 2 + 4, lane, "end") for lane, y in LANES.items()]
    for lane, text, colour, start, end in SPANS:
        parts.append(box(LEFT + start * UNIT, LANES[lane], (end - start) * UNIT, text, colour))
    x = LEFT + 32 * UNIT
    parts.append(f'<line x1="{x:g}" y1="48" x2="{x:g}" y2="156" stroke="#333" stroke-dasharray="4 3"/>')
    parts.append(label(x - 5, 168, "the next forward begins when its first block has arrived", "end"))
    return parts


def bucket() -> list[str]:
    """One bucket on two ranks, from gradients to new weights."""
    top, wide = 250, 150
    bold = ' font-weight="bold"'
    parts = [label(10, top - 40, "In memory: one bucket on two ranks (gradients mode, ZeRO-2)", "start", bold)]
    heads = ["gradients of this rank's batch", "own range of their mean", "own range of the weights", "all weights"]
    columns = [LEFT, LEFT + 265, LEFT + 490, LEFT + 705]
    widths = [wide, wide / 2, wide / 2, wide]
    for head, x, width in zip(heads, columns, widths, strict=True):
        parts.append(label(x + width / 2, top - 14, head))
    for rank in range(2):
        y = top + rank * 70
        parts.append(label(LEFT - 10, y + HEIGHT / 2 + 4, f"rank {rank}", "end"))
        own = "ab"[rank]
        for half, colour in enumerate("ab"):
            parts.append(box(columns[0] + half * wide / 2, y, wide / 2, "", colour))
            parts.append(box(columns[3] + half * wide / 2, y, wide / 2, "", colour))
        parts += [box(columns[1], y, wide / 2, "", own), box(columns[2], y, wide / 2, "", own)]
        middle = y + HEIGHT / 2
        parts.append(arrow(columns[0] + wide + 4, middle, columns[1] - 4, middle))
        parts.append(arrow(columns[1] + wide / 2 + 4, middle, columns[2] - 4, middle))
        parts.append(arrow(columns[2] + wide / 2 + 4, middle, columns[3] - 4, middle))
    verbs = [
        ("reduce-scatter", columns[0] + wide, columns[1]),
        ("optimizer, own state", columns[1] + wide / 2, columns[2]),
        ("all-gather", columns[2] + wide / 2, columns[3]),
    ]
    parts += [label((begin + end) / 2, top + 57, verb) for verb, begin, end in verbs]
    return parts


def main() -> None:
    height = 380
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
          'font-size="12" role="img" aria-label="A step, followed by the data">')  # fmt: skip
    print('<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
          '<path d="M0,0 L8,4 L0,8 z" fill="#333"/></marker></defs>')  # fmt: skip
    print(f'<rect width="{WIDTH}" height="{height}" fill="white"/>')
    print("\n".join(timeline() + bucket()))
    print("</svg>")


if __name__ == "__main__":
    main()
