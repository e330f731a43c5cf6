"""audit.html: one page with its style and charts, which needs no network."""

from collections.abc import Sequence
from html import escape
from typing import Any

BARS_MAX = 60
WIDTH, HEIGHT = 900, 160
BAR_WIDTH_MAX = 110
LABELLED_MAX = 12  # bars with room for number and name each
_STATES = {"passed": "clean", "failed": "violated", "open": "undecided", "not made": "soft"}

_STYLE = """
:root{color-scheme:light dark;--ink:#1c2430;--soft:#667085;--line:#d9dee7;--paper:#fff;--bar:#3b6fd4;
--clean:#1a7f4b;--violated:#b42318;--undecided:#9a6700}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ef;--soft:#9aa4b5;--line:#333b49;--paper:#14181f;
--bar:#7aa2f0;--clean:#4cc38a;--violated:#f97066;--undecided:#e2b03f}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:960px;
margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}
.verdict{font-size:1.3rem;font-weight:600;padding:.6rem 1rem;border-left:6px solid currentColor}
.clean{color:var(--clean)}.violated{color:var(--violated)}.undecided{color:var(--undecided)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:left;overflow-wrap:anywhere}
.pairs th{width:14rem;font-weight:normal;color:var(--soft)}
td.n,th.n{text-align:right}.soft{color:var(--soft)}svg{width:100%;height:auto}rect{fill:var(--bar)}
text{fill:var(--soft);font-size:12px}
"""


def page(document: dict[str, Any]) -> str:
    """Return the page for a document of pipeline.audit.report."""
    verdict = document["verdict"]
    timeline = document["timeline"]
    parts = [
        f"<h1>Audit of {_text(document['source'])}</h1>",
        f'<p class="verdict {verdict}">{_text(document["headline"])}</p>',
        *(f'<p class="undecided">{_text(doubt)}</p>' for doubt in document["no_verdict_because"]),
        "<h2>Summary</h2>",
        _pairs(_facts(document)),
        "<h2>Checks</h2>",
        _pairs(
            {
                name: f'<span class="{_STATES[state]}">{state}</span>'
                for name, state in document["checks"].items()
            }
        ),
        *_findings("Violation", document["violations"]),
        *_findings("Open question", document["open_questions"]),
        *_findings("Notice", document["notices"]),
        *_client_sessions(document["client_sessions"]),
        _reconciliation(document["reconciliation"]),
        *_over_time(timeline["steps"], timeline["step_seconds"]),
        "<h2>Partitions</h2>",
        _chart([(str(p["partition"]), p["records"]) for p in document["partitions"]]),
        _table(document["partitions"]),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>Audit: '
        f"{verdict}</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _facts(document: dict[str, Any]) -> dict[str, str]:
    """Return the facts of the summary, each as HTML."""
    span = ", ".join(f"{name} {value}" for name, value in document["span"].items() if value is not None)
    window_s, keys_max = document["window_seconds"], document["index_keys_max_of_partition"]
    facts = {
        "records": f"{document['records']:,}",
        "scope": document["scope"],
        "span": span.replace("_", " ") or "everything",
        "partitions of the topic": document["partition_count"] or "unknown",
        "ids are remembered for": _duration(window_s) if window_s else "unknown",
        "and at most, a partition": f"{keys_max:,}" if keys_max else "unknown",
        "begun": document["began"],
        "took": f"{document['seconds']:.1f} s",
        "version": document["version"],
    }
    return {name: _text(value) for name, value in facts.items()}


def _duration(seconds: float) -> str:
    for unit_s, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit_s and seconds % unit_s == 0:
            return f"{seconds / unit_s:g} {name}"
    return f"{seconds:g} s"


def _pairs(pairs: dict[str, str]) -> str:
    rows = (f"<tr><th>{_text(name)}</th><td>{value}</td></tr>" for name, value in pairs.items())
    return f'<table class="pairs">{"".join(rows)}</table>'


def _findings(title: str, findings: dict[str, Any]) -> list[str]:
    if not findings:
        return [f"<h2>{title}s</h2><p>none</p>"]
    return [
        f"<h2>{title}: {finding['count']:,} &times; {_text(kind)}</h2><p>{_text(finding['meaning'])}</p>"
        + _table(finding["first"])
        for kind, finding in findings.items()
    ]


def _client_sessions(totals: dict[str, Any]) -> list[str]:
    if not totals["sessions"]:
        return []
    numbers = {
        "clients": totals["clients"],
        "sessions": totals["sessions"],
        "of these lack sequences": totals["with_gaps"],
        "sequences missing": totals["missing"],
        "sessions known from the middle on": totals["known_from_the_middle"],
    }
    rows = [gaps | {"ranges": _ranges(gaps["ranges"])} for gaps in totals["worst"]]
    return [
        "<h2>Client sessions</h2>",
        _pairs({name: f"{number:,}" for name, number in numbers.items()}),
        _table(rows),
    ]


def _ranges(ranges: Sequence[Sequence[int]]) -> str:
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _reconciliation(result: dict[str, Any]) -> str:
    reasons = "".join(f"<li>{_text(reason)}</li>" for reason in result["reasons"])
    charts = ""
    if result["totals"]:
        counts = f"{result['accepted']:,} accepted, {result['committed']:,} committed since then"
        charts = f"<p>{counts}</p>{_chart(list(result['totals'].items()))}"
    return f"<h2>Reconciliation: {_text(result['state'])}</h2><ul>{reasons}</ul>{charts}"


def _over_time(steps: Sequence[dict[str, Any]], step_seconds: float) -> list[str]:
    """Return a heading with the length of a bar, and the chart."""
    bars = [(step["begins"][:16].replace("T", " "), step["records"]) for step in steps]
    length = _duration(step_seconds * max(1, _folded_by(bars)))
    return [f"<h2>Records over time, UTC, in steps of {length}</h2>", _chart(bars)]


def _folded_by(bars: Sequence[object]) -> int:
    """Return how many steps become one bar."""
    return -(-len(bars) // BARS_MAX)


def _chart(bars: Sequence[tuple[str, int]]) -> str:
    """Return a bar chart of at most BARS_MAX bars, each the sum of adjacent steps."""
    if not bars:
        return ""
    fold = _folded_by(bars)
    folded = [(bars[i][0], sum(n for _, n in bars[i : i + fold])) for i in range(0, len(bars), fold)]
    top = max(number for _, number in folded) or 1
    step = min(WIDTH / len(folded), BAR_WIDTH_MAX)
    shapes = []
    for place, (label, number) in enumerate(folded):
        height = max(1.0, number / top * HEIGHT) if number else 0.0
        shapes.append(
            f'<rect x="{place * step:.1f}" y="{HEIGHT - height + 14:.1f}" width="{max(1.0, step - 2):.1f}" '
            f'height="{height:.1f}"><title>{_text(label)}: {number:,}</title></rect>'
        )
    for place, (label, number) in _labelled(folded):
        x, y = place * step, HEIGHT - max(1.0, number / top * HEIGHT) + 10
        is_right = x > WIDTH * 0.8 and len(folded) > LABELLED_MAX
        anchor = f'text-anchor="{"end" if is_right else "start"}"'
        x += step if is_right else 0
        shapes.append(f'<text x="{x:.1f}" y="{y:.1f}" {anchor}>{number:,}</text>')
        shapes.append(f'<text x="{x:.1f}" y="{HEIGHT + 30}" {anchor}>{_text(label)}</text>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 36}" role="img">{"".join(shapes)}</svg>'


def _labelled(bars: Sequence[tuple[str, int]]) -> list[tuple[int, tuple[str, int]]]:
    """Return positions and values of the bars to label, far enough apart."""
    numbered = list(enumerate(bars))
    if len(bars) <= LABELLED_MAX:
        return numbered
    distance = -(-len(bars) // 6)
    return [*numbered[: -distance or None : distance], numbered[-1]]


def _table(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return ""
    head = "".join(
        f'<th class="{_kind(value)}">{_text(name.replace("_", " "))}</th>' for name, value in rows[0].items()
    )
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{_kind(value)}">{_text(value)}</td>' for value in row.values())
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _kind(value: object) -> str:
    return "n" if isinstance(value, int) else ""


def _text(value: object) -> str:
    return escape("" if value is None else str(value))
