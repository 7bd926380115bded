"""Results of fitting, as text for a terminal and as a picture."""

from collections import Counter
from collections.abc import Sequence
from html import escape

from routing.intents.acceptance import Point
from routing.intents.measures import HeadMeasures

MAX_PAIRS = 15
"""Most rows of confused pairs."""
CELL, MARGIN = 14, 150


def text(measured: HeadMeasures) -> str:
    """Return the figures, then the confused intents, most frequent first."""
    lines = [
        f"by {measured.features}, on {measured.examples} held-out examples and {measured.out_of_scope} of no intent:",
        f"  right intent           {measured.accuracy:.1%}",
        f"  of an intent, answered {measured.answered:.1%}; of all answers right {measured.precision:.1%} "
        f"(threshold {measured.threshold:.3f})",
        f"  calibration error      {measured.calibration_error:.3f}",
    ]
    if measured.out_of_scope_recall is not None:
        area = "" if measured.auroc is None else f", AUROC {measured.auroc:.3f}"
        lines.append(f"  of no intent, left out {measured.out_of_scope_recall:.1%}{area}")
    wrong = [(right, area, count) for right, area, count in measured.confusion if right != area]
    if wrong:
        width = max(len(right) for right, _, _ in wrong[:MAX_PAIRS])
        lines.append("  taken for something else, or for nothing (-):")
        lines += [f"    {right:<{width}}  ->  {area}  {count}" for right, area, count in wrong[:MAX_PAIRS]]
        if len(wrong) > MAX_PAIRS:
            lines.append(f"    and {len(wrong) - MAX_PAIRS} more pairs")
    return "\n".join(lines)


def picture(measured: HeadMeasures) -> str:
    """Return the confusion table as SVG: one row per right intent, one column per predicted one."""
    counts = Counter({(right, predicted): count for right, predicted, count in measured.confusion})
    labels = sorted({label for pair in counts for label in pair}, key=lambda label: (label == "-", label))
    totals = Counter[str]()
    for (right, _), count in counts.items():
        totals[right] += count
    side = len(labels) * CELL
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{side + MARGIN + 10}" height="{side + MARGIN + 10}" '
        'font-family="sans-serif" font-size="10"><rect width="100%" height="100%" fill="white"/>'
    ]
    for index, label in enumerate(labels):
        name, at = escape(label[:22]), MARGIN + index * CELL
        parts.append(f'<text x="{MARGIN - 4}" y="{at + CELL - 4}" text-anchor="end">{name}</text>')
        parts.append(f'<text transform="translate({at + CELL - 4} {MARGIN - 4}) rotate(-90)">{name}</text>')
    for (right, predicted), count in sorted(counts.items()):
        share = count / totals[right]
        x, y = MARGIN + labels.index(predicted) * CELL, MARGIN + labels.index(right) * CELL
        colour = "#2f6f4f" if right == predicted else "#b03030"
        parts.append(
            f'<rect x="{x}" y="{y}" width="{CELL - 1}" height="{CELL - 1}" fill="{colour}" '
            f'fill-opacity="{max(0.08, share):.2f}">'
            f"<title>{escape(right)} -&gt; {escape(predicted)}: {count}</title></rect>"
        )
    return "\n".join([*parts, "</svg>\n"])


def curve_text(points: Sequence[Point]) -> str:
    """Return the cost-quality curve as a table."""
    rows = [f"{'THRESHOLD':>9}  {'ACCEPTED':>8}  {'PRICE':>8}  TARGETS"]
    for point in points:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in point.shares.items())
        rows.append(f"{point.threshold:>9.2f}  {point.accepted:>8.1%}  {point.price:>8.2f}  {shares}")
    return "\n".join(rows)
