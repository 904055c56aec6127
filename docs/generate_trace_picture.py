"""Draws trace.svg: one execution of a burst in a driver's own process, out of a trace that is made for it now.

    python docs/generate_trace_picture.py [--check]

No two traces have the same times: `--check` looks whether the picture that is there has the spans, in their places, that
one of today would have.
"""

import re
import sys
import tempfile
from html import escape
from pathlib import Path

import numpy as np

import nnhal
from nnhal.runtime.tracing.perfetto import read
from nnhal.runtime.tracing.timeline import Span, Timeline

FILE = Path(__file__).parent / "how-to/models/trace.svg"
COLOURS = {"application": "#d6e4f5", "runtime": "#dff0d8", "ipc": "#fdebd0", "driver": "#ead7f0"}
TIP = (
    '<marker id="tip" markerWidth="7" markerHeight="7" refX="5" refY="3" orient="auto">'
    '<path d="M0 0L6 3L0 6z" fill="#c0392b"/></marker>'
)
WIDTH, LEFT, ROW, LETTER = 940, 12, 24, 6.2
RUNS = 50
STYLE = "text{font:11px sans-serif;fill:#222} .head{font-weight:bold} .box{stroke:#888} .flow{stroke:#c0392b;fill:none}"


def traced() -> Timeline:
    """A trace of executions in a burst, of a model with three operations, in a process of its own."""
    b = nnhal.Builder("small")
    x = b.input((256, 256))
    y = b.logistic(b.mul(b.add(x, x), x))
    array = np.ones((256, 256), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.pftrace")
        compiled = nnhal.compile(b.finish([x], [y]), devices="reference", isolation="process")
        with compiled, nnhal.trace(path), compiled.burst() as burst:
            for _ in range(RUNS):
                burst(array)
        return read(path.read_bytes(), str(path))


def chosen(timeline: Timeline) -> list[Span]:
    """The spans of the shortest execution: on a busy machine the others wait for a processor."""
    calls = [span for span in timeline.spans if span.name == "call"]
    shortest = min(calls, key=lambda span: span.end - span.begin)
    return [span for span in timeline.spans if span.origin is shortest]


def depth(span: Span) -> int:
    """How many spans are around it on its thread."""
    return 0 if span.parent is None else 1 + depth(span.parent)


def drawn(timeline: Timeline) -> str:
    """The picture: rows of boxes for each process, flows between them, and a scale."""
    spans = chosen(timeline)
    begin, end = min(s.begin for s in spans), max(s.end for s in spans)
    scale = (WIDTH - 2 * LEFT) / (end - begin)
    parts, tops, top = [], {}, 8.0
    for pid in dict.fromkeys(span.pid for span in spans):
        name = timeline.processes[pid]
        label = "application process" if name == "application" else f"driver process ({name})"
        parts.append(f'<text class="head" x="{LEFT}" y="{top + 14:.0f}">{escape(label)}</text>')
        tops[pid] = top + 22
        top = tops[pid] + ROW * (1 + max(depth(s) for s in spans if s.pid == pid)) + 26

    def at(point: int) -> float:
        return LEFT + (point - begin) * scale

    def row(span: Span) -> float:
        return tops[span.pid] + ROW * depth(span)

    for span in spans:
        x, y, width = at(span.begin), row(span), max((span.end - span.begin) * scale, 1.5)
        title = f"{span.layer}, {span.phase}: {span.name}"
        place = f'x="{x:.1f}" y="{y:.0f}" width="{width:.1f}" height="{ROW - 3}"'
        box = f'<rect class="box" {place} fill="{COLOURS[span.layer]}">'
        parts.append(f"{box}<title>{escape(title)}, {(span.end - span.begin) / 1e3:.1f} µs</title></rect>")
        if width > len(span.name) * LETTER:
            parts.append(f'<text x="{x + 4:.1f}" y="{y + 15:.0f}">{escape(span.name)}</text>')
    flows = {flow for span in spans for flow in span.last}
    for flow in sorted(flows):
        done = next(span for span in spans if span.answers == flow)
        results = [span for span in spans if flow in span.last and span is not done]
        assert done.caller is not None
        pairs = [(at(done.caller.begin), row(done.caller) + ROW - 3, at(done.begin), row(done))]
        pairs += [(at(done.end), row(done), at(each.begin), row(each) + ROW - 3) for each in results]
        for x1, y1, x2, y2 in pairs:
            half = (y1 + y2) / 2
            curve = f"M{x1:.1f} {y1:.0f} C{x1:.1f} {half:.0f} {x2:.1f} {half:.0f} {x2:.1f} {y2:.0f}"
            parts.append(f'<path class="flow" marker-end="url(#tip)" d="{curve}"/>')
    x = LEFT
    for layer, colour in COLOURS.items():
        parts.append(f'<rect class="box" x="{x}" y="{top:.0f}" width="14" height="14" fill="{colour}"/>')
        parts.append(f'<text x="{x + 19}" y="{top + 11:.0f}">{layer}</text>')
        x += 110
    parts.append(
        f'<text x="{x + 40}" y="{top + 11:.0f}">{(end - begin) / 1e3:.0f} µs from left to right; red: call and answer</text>'
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top + 24:.0f}" role="img">'
    whole = [head, f"<style>{STYLE}</style><defs>{TIP}</defs>", *parts, "</svg>"]
    return "\n".join(whole) + "\n"


def form(picture: str) -> list[str]:
    """What a picture has, whatever the times are: the processes, and layer, phase and name of each span, in order."""
    found = re.findall(r'<text class="head"[^>]*>([^<]*)<|<title>([^<]*), [\d.]+ µs<', picture)
    return ["".join(each) for each in found]


def main() -> int:
    """Draw it, or say that it is stale; the exit status."""
    picture = drawn(traced())
    if "--check" not in sys.argv[1:]:
        FILE.write_text(picture)
        return 0
    if FILE.exists() and form(FILE.read_text()) == form(picture):
        return 0
    print("trace.svg is stale, must be drawn again: python docs/generate_trace_picture.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
