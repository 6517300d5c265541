"""Loss curves as one SVG of two panels: the losses, and their distance to a reference, smoothed."""
import math

COLOURS = ("#111111", "#999999", "#0072b2", "#009e73", "#e69f00", "#d55e00", "#cc79a7")
WIDTH, PANEL, LEFT, TOP, GAP, RIGHT = 860, 250, 64, 40, 46, 16


def smoothed(values, window):
    """Mean over the latest `window` values."""
    return [sum(values[max(0, i - window + 1):i + 1]) / len(values[max(0, i - window + 1):i + 1]) for i in range(len(values))]


def round_step(span):
    """A step of 1, 2 or 5 times a power of ten that cuts the span into four to ten."""
    power = 10 ** math.floor(math.log10(span / 4))
    return next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= 8)


def panel(curves, top, title, steps):
    """Frame, grid and lines of {colour: values}."""
    values = [value for line in curves.values() for value in line]
    low, high = min(values), max(values)
    if high - low < 1e-9:
        low, high = low - 1e-3, high + 1e-3
    margin = (high - low) * 0.05
    low, high = low - margin, high + margin

    def x(step):
        return LEFT + (WIDTH - LEFT - RIGHT) * (step - 1) / max(steps - 1, 1)

    def y(value):
        return top + PANEL * (high - value) / (high - low)

    parts = [f'<text x="{LEFT}" y="{top - 8}" class="t">{title}</text>']
    step = round_step(high - low)
    tick = math.ceil(low / step) * step
    while tick <= high:
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" class="g"/>'
                     f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" class="n">{tick:.4g}</text>')
        tick = round(tick + step, 12)
    for number in range(0, steps + 1, max(1, int(round_step(steps)))):
        if number > 0:
            parts.append(f'<text x="{x(number):.1f}" y="{top + PANEL + 16}" class="m">{number}</text>')
    for colour, line in curves.items():
        points = " ".join(f"{x(i + 1):.1f},{y(value):.1f}" for i, value in enumerate(line))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.3"/>')
    parts.append(f'<rect x="{LEFT}" y="{top}" width="{WIDTH - LEFT - RIGHT}" height="{PANEL}" fill="none" stroke="#444"/>')
    return "\n".join(parts)


def draw(title, curves, reference):
    """curves: {name: losses}; the SVG's text."""
    steps = max(len(line) for line in curves.values())
    window = max(1, steps // 15)
    colours = dict(zip(curves, COLOURS))
    losses = {colours[name]: smoothed(line, max(1, window // 4)) for name, line in curves.items()}
    distance = {colours[name]: smoothed([a - b for a, b in zip(line, curves[reference])], window) for name, line in curves.items()}
    legend_top = TOP + 2 * PANEL + GAP + 40
    height = legend_top + 20 * ((len(curves) + 1) // 2) + 8
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
             "<style>.g{stroke:#ddd}.n{text-anchor:end;fill:#444}.m{text-anchor:middle;fill:#444}.t{font-weight:bold}</style>",
             f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
             f'<text x="{WIDTH / 2}" y="16" text-anchor="middle" font-size="14">{title}</text>',
             panel(losses, TOP, "loss", steps),
             panel(distance, TOP + PANEL + GAP, f"loss minus that of {reference}, mean over {window} steps", steps)]
    for number, name in enumerate(curves):
        x, y = LEFT + 400 * (number % 2), legend_top + 20 * (number // 2)
        parts.append(f'<line x1="{x}" x2="{x + 24}" y1="{y - 4}" y2="{y - 4}" stroke="{colours[name]}" stroke-width="3"/>'
                     f'<text x="{x + 30}" y="{y}">{name}</text>')
    return "\n".join(parts) + "\n</svg>\n"
