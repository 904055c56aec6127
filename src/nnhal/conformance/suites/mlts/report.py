"""The report: mlts.csv, and mlts.html with histograms if matplotlib is installed."""

import csv
import io
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from nnhal.conformance.suites.mlts.loadgen import LABEL
from nnhal.conformance.suites.suite import CaseOutcome

CSV, HTML = "mlts.csv", "mlts.html"
NEEDED = f"{HTML} is not written: its histograms need matplotlib, pip install 'nnhal[plots]'; {CSV} has all figures"
# A column: its head, the part whose measurements it shows, and their key.
COLUMNS = (
    ("inputs", "accuracy", "inputs"),
    ("top-1", "accuracy", "top1"),
    ("top-5", "accuracy", "top5"),
    ("classes changed (share)", "accuracy", "changed_share"),
    ("mean squared error", "accuracy", "mse"),
    ("greatest error", "accuracy", "greatest"),
    ("greatest error (share of magnitude)", "accuracy", "relative"),
    ("greatest error (LSB)", "accuracy", "lsb"),
    ("compile (ms)", "compile", "compile_ms"),
    ("compile and save (ms)", "compile", "save_ms"),
    ("restore (ms)", "compile", "restore_ms"),
    ("cache (bytes)", "compile", "cache_bytes"),
    ("executions", "latency", "runs"),
    ("first (ms)", "latency", "first_ms"),
    ("p50 (ms)", "latency", "p50_ms"),
    ("p90 (ms)", "latency", "p90_ms"),
    ("p99 (ms)", "latency", "p99_ms"),
    ("p99.9 (ms)", "latency", "p99.9_ms"),
    ("SingleStream p90 (ms), non-conforming", "loadgen", "single_stream_ms"),
    ("Offline (samples/s), non-conforming", "loadgen", "offline_samples_per_second"),
)
TIMES = ("compile", "compile (ms)"), ("first", "first (ms)"), ("p50", "p50 (ms)"), ("p99", "p99 (ms)")
REFERENCE = "reference (CPU)"
LABELS = "labels"  # judge top-1; else the reference's classes
HEADS = ("model", "engine", *(head for head, _, _ in COLUMNS), "top-1 of", "inputs are", "verdict", "notes")
COLOURS = {"device": "#4878d0", "engine": "#ee854a", "reference": "#8a8a8a"}
STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
.table { overflow-x: auto; }
table { font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { box-shadow: 0 1px #8885; padding: 0.25rem 0.6rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child, td:nth-child(2), th:nth-child(2) { text-align: left; }
.plots { display: flex; flex-wrap: wrap; gap: 1rem; }
.plots svg { max-width: 100%; height: auto; }
"""


def write(folder: Path, device: str, outcomes: Sequence[CaseOutcome]) -> list[Path]:
    """Write the report; return its files. Without matplotlib, a warning names the missing package."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = rows_of(device, outcomes)
    text = io.StringIO()
    writer = csv.DictWriter(text, HEADS)
    writer.writeheader()
    writer.writerows(rows)
    (folder / CSV).write_text(text.getvalue(), "utf-8")
    try:
        plots = histograms(outcomes, device)
    except ImportError:
        logging.getLogger("nnhal.conformance").warning("%s", NEEDED)
        (folder / HTML).unlink(missing_ok=True)  # of an earlier run, with other figures
        return [folder / CSV]
    (folder / HTML).write_text(page(device, rows, plots), "utf-8")
    return [folder / CSV, folder / HTML]


def rows_of(device: str, outcomes: Iterable[CaseOutcome]) -> list[dict[str, Any]]:
    """Return a row for each model and engine: the device, the CPU reference, the file's own engine called directly."""
    by_model: dict[str, dict[str, CaseOutcome]] = {}
    for outcome in outcomes:
        model, _, part = outcome.name.rpartition("/")
        by_model.setdefault(model, {})[part] = outcome
    return [
        row
        for model, parts in by_model.items()
        for side in ("device", "reference", "engine")
        for row in [_row(model, side, device, parts)]
        if row is not None
    ]


def lines_of(outcomes: Iterable[CaseOutcome]) -> Iterator[str]:
    """Yield a line for each model with the most important figures of the device, and of the file's engine.

    The reference has a line where labels judge it.
    """
    for row in rows_of("the device", outcomes):
        figures = [f"{name} {_milliseconds(row[head])}" for name, head in TIMES if row[head] != ""]
        labelled = row["top-1 of"] == LABELS
        if row["top-1"] != "":
            top5 = f", top-5 {float(row['top-5']):.1%} of {row['inputs']} labels" if labelled else ""
            figures.insert(0, f"top-1 {float(row['top-1']):.1%}{top5}")
        if figures and (labelled or row["engine"] != REFERENCE):
            yield f"{row['model']}, {row['engine']}: {', '.join(figures)}"


def _milliseconds(value: str) -> str:
    number = float(value)
    return f"{number:,.0f} ms" if number >= 1000 else f"{number:.3g} ms"


def _row(model: str, side: str, device: str, parts: Mapping[str, CaseOutcome]) -> dict[str, Any] | None:
    found = {part: outcome.found.get(side, {}) for part, outcome in parts.items()}
    if side != "device" and not any(found.values()):
        return None
    if side == "device" and found.get("loadgen"):
        found["loadgen"] = _scenarios(found["loadgen"])
    row: dict[str, Any] = {"model": model, "engine": name_of(side, device, parts.values())}
    for head, part, key in COLUMNS:
        value = found.get(part, {}).get(key)
        row[head] = "" if value is None else f"{value:.6g}" if isinstance(value, float) else value
    accuracy = parts["accuracy"].found if "accuracy" in parts else {}
    row["top-1 of"] = accuracy.get("top-1 of", "") if row["top-1"] != "" else ""
    row["inputs are"] = next((each.found["data"] for each in parts.values() if "data" in each.found), "")
    row["verdict"] = row["notes"] = ""
    if side == "device":
        row["verdict"] = " ".join(f"{part}:{outcome.verdict}" for part, outcome in parts.items())
        row["notes"] = "; ".join(_notes(parts))
    return row


def _notes(parts: Mapping[str, CaseOutcome]) -> Iterable[str]:
    texts = [f"{part}: {outcome.reason}" for part, outcome in parts.items() if outcome.reason]
    texts += [f"own engine: {each.found['engine_note']}" for each in parts.values() if "engine_note" in each.found]
    for outcome in parts.values():
        found = outcome.found.get("device", {})
        if found.get("restore_ms", 0) is None:
            texts += [f"not restored: {state}" for state in found["cache"]]
        if "label" in found:
            texts.append(f"LoadGen is {LABEL}")
    return dict.fromkeys(texts)


def _scenarios(found: Mapping[str, Any]) -> dict[str, Any]:
    spent = found.get("SingleStream", {}).get("single_stream_p90_ns")
    return {
        "single_stream_ms": None if spent is None else spent / 1e6,
        "offline_samples_per_second": found.get("Offline", {}).get("offline_samples_per_second"),
    }


def name_of(side: str, device: str, outcomes: Iterable[CaseOutcome]) -> str:
    """Return the engine's name in the report."""
    if side == "engine":
        name = next((each.found["engine_name"] for each in outcomes if "engine_name" in each.found), "")
        return f"{name} called directly"
    return device if side == "device" else REFERENCE


def histograms(outcomes: Iterable[CaseOutcome], device: str) -> list[tuple[str, str]]:
    """Return the model and the SVG of its latencies; ImportError without matplotlib."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    grey = "#808080"  # legible on white and on black
    settings: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "nnhal", "font.size": 9}
    settings |= dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), grey)
    drawn = []
    for outcome in outcomes:
        sides = [side for side in COLOURS if "counts" in outcome.found.get(side, {})]
        if not sides:
            continue
        with rc_context(settings):
            figure = Figure(figsize=(5.2, 2.9), layout="constrained")
            axes = figure.subplots()
            for side in sides:
                found = outcome.found[side]
                total = max(sum(found["counts"]), 1)
                label = f"{name_of(side, device, [outcome])}: p50 {found['p50_ms']:.3g} ms, {found['runs']} executions"
                shares = [count / total for count in found["counts"]]
                axes.stairs(shares, found["edges"], label=label, color=COLOURS[side], fill=True, alpha=0.6)
            axes.set_xscale("log")
            axes.set_xlabel("latency (ms), up to p99")
            axes.set_ylabel("share of executions")
            axes.set_title(outcome.found["model"])
            axes.legend(frameon=False, fontsize=8)
            text = io.StringIO()
            FigureCanvasSVG(figure)
            figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
        svg = text.getvalue()
        drawn.append((outcome.found["model"], svg[svg.index("<svg") :]))
    return drawn


def page(device: str, rows: Sequence[Mapping[str, Any]], plots: Sequence[tuple[str, str]]) -> str:
    """Return the page: it refers to no other file."""
    head = "".join(f"<th>{escape(name)}</th>" for name in HEADS)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_short(row[name]))}</td>" for name in HEADS) + "</tr>" for row in rows
    )
    figures = "".join(f"<figure>{svg}</figure>" for _, svg in plots)
    title = f"Latency and accuracy of models on {escape(device)}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style></head>'
        f"<body><h1>{title}</h1><p>Errors are those against the CPU reference. Top-1 counts labels where the data has"
        f" them, else the reference's class. LoadGen figures are {escape(LABEL)}.</p>"
        f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        f'<h2>Latency</h2><div class="plots">{figures}</div></body></html>\n'
    )


def _short(value: Any) -> str:
    """Return a cell with three digits of a fraction; the CSV has more."""
    try:
        return str(value) if isinstance(value, int) else f"{float(value):.3g}"
    except ValueError:
        return str(value)
