"""The report of one or several runs: a self-contained HTML file with every trace in it; ``nl2sql report``.

``runs.run`` collects the runs, ``episodes`` packs the traces, ``runs.plots`` draws; here the template, the style and
the script are put together. Nothing is loaded from a network, by the page or by this package; no model is needed.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from nl2sql import __version__
from nl2sql.agents.record import json_text
from nl2sql.config import Config
from nl2sql.errors import UsageError
from nl2sql.eval.causes import CAUSES
from nl2sql.machine import write_whole
from nl2sql.runs.dialogues import dialogue_rows
from nl2sql.runs.folder import as_a_run_leaves
from nl2sql.runs.plan import RunSpec, Trust, flat
from nl2sql.runs.plots import SERIES, css, figures
from nl2sql.runs.report.episodes import pack
from nl2sql.runs.run import Collected, Run, collect
from nl2sql.runs.summary import REPAIRS, environment_lines, repairs_line, summary_notes

SCRIPTS = ("episode.js", "notes.js", "slices.js", "page.js")  # in this order: one script
# Of a plan, what may change an answer or its cost and has no column of its own in the page; and its default.
TOLD = ("adapter", "engine", "device", "batch_size", "server", "sample_seed", "seeds", "equal_tokens", "engine_url")
NOT_TOLD = {field.name: field.default for field in fields(RunSpec) if field.name in TOLD}


def report_html(
    runs: Iterable[str | Path],
    *,
    golds: bool = True,
    progress: bool = True,
    live: Mapping[str, str] | None = None,
    trust: Trust | bool = False,
) -> str:
    """The report of finished runs as one HTML page that needs nothing else.

    runs: run folders; the first is what the others are compared with. golds: run the benchmark's golds (in the
    sandbox) to show their rows beside the predicted ones. live: where ``nl2sql runs view`` serves the page, its
    addresses of the list of ``runs``, of the page for ``sql`` (a JSON list, one of each run), and of the one that takes
    ``notes``.
    trust: see ``runs.plan``.
    Raises UsageError for a folder without a finished run.
    """
    import jinja2

    folders = [Path(run) for run in runs]
    page = escaping()
    page.filters["percent"] = lambda value: "–" if value is None else f"{100 * value:.1f}"
    page.filters["points"] = lambda value: f"{100 * value:+.1f}".replace("-", "−")
    with as_a_run_leaves(folders[0] if len(folders) == 1 else ", ".join(map(str, folders))):
        collected = collect(folders)
        packed = pack(collected, golds=golds, progress=progress, trust=trust)
        values = _values(collected) | {"packed": packed, "live": live or {}}
        try:
            text = page.from_string(_asset("page.html")).render(values)
        except jinja2.UndefinedError as error:
            raise ValueError(f"report.json: {error}") from error
    return text.encode("utf-8", "backslashreplace").decode()  # half a character, which a model can write


def escaping(**options: Any) -> Any:
    """Jinja's environment with ``options`` for pages in which whatever a run holds is text."""
    import jinja2

    options |= {"trim_blocks": True, "lstrip_blocks": True, "undefined": jinja2.StrictUndefined}
    return jinja2.Environment(autoescape=True, **options)


def _values(collected: Collected) -> dict[str, Any]:
    """What the template shows, but for the traces."""
    script, runs = "".join(map(_asset, SCRIPTS)), collected.runs.items()
    return {
        "title": title(collected),
        "collected": collected,
        "facts": [_facts(label, run) for label, run in runs],
        "settings": settings(collected),
        "whole_config": [
            (label, yaml.safe_dump(run.manifest["config"], sort_keys=False, allow_unicode=True)) for label, run in runs
        ],
        "notes": [(label, summary_notes(run.report, verbose=True)) for label, run in runs],
        "alarms": [(label, line) for label, run in runs for line in run.report.get("alarms", [])],
        "figures": figures(collected),
        "causes": _causes(collected),
        "flips": _flips(collected),
        "repairs": _repairs(collected),
        "dialogues": _dialogues(collected),
        "css_of": {system.label: css(collected, system) for system in collected.systems},
        "series": SERIES,
        "style": style(),
        "script": script,
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "version": __version__,
        "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def write_report(
    runs: Iterable[str | Path],
    out: str | Path,
    *,
    golds: bool = True,
    progress: bool = True,
    force: bool = False,
    trust: Trust | bool = False,
) -> Path:
    """Write ``report_html`` to ``out``. Raises UsageError where that exists (unless ``force``) or cannot be written."""
    path = Path(out).expanduser()
    if path.exists() and not force:
        raise UsageError(f"--out {path} exists; name another file, or overwrite it with --force")
    if not path.parent.is_dir():
        raise UsageError(f"--out {path}: the folder {path.parent} does not exist")
    text = report_html(runs, golds=golds, progress=progress, trust=trust)
    try:
        write_whole(path, text)
    except OSError as error:
        raise UsageError(f"--out {path} cannot be written: {error.strerror}") from None
    return path


@dataclass(frozen=True)
class View:
    """A report in a notebook's cell: the page in a frame of its own."""

    page: str
    height: int

    def _repr_html_(self) -> str:
        return (
            "<p>The report, in a frame; where the notebook is not trusted, it shows once the cell is run.</p>"
            f'<iframe srcdoc="{html.escape(self.page)}" style="width:100%;height:{self.height}px;border:0" '
            'sandbox="allow-scripts"></iframe>'
        )


def view(*runs: Any, golds: bool = True, height: int = 900) -> View:
    """The report of runs (``Run`` objects or their folders) for a notebook. The page is stored in the notebook."""
    return View(report_html([getattr(run, "folder", run) for run in runs], golds=golds, progress=False), height)


def style() -> str:
    """The page's style: the rules of a trace, which notebooks have too, and those of the page."""
    return files("nl2sql.agents").joinpath("trace.css").read_text(encoding="utf-8") + _asset("page.css")


def _asset(name: str) -> str:
    return files("nl2sql.runs.report").joinpath(name).read_text(encoding="utf-8")


def title(collected: Collected) -> str:
    """Controllers, models and benchmarks of all runs, and the number of questions.

    Example: ``react · smollm2-135m · packaged/quick, 40 questions``.
    """
    reports = [run.report for run in collected.runs.values()]
    splits = [run.manifest["plan"].get("split") or "all" for run in collected.runs.values()]
    counts = {f"{report['n']:,}" for report in reports}
    parts = [
        _listed(report["controller"] for report in reports),
        _listed(str(report["model"]) for report in reports),
        _listed(f"{report['benchmark']}/{split}" for report, split in zip(reports, splits, strict=True)),
    ]
    return f"{' · '.join(parts)}, {counts.pop() if len(counts) == 1 else 'various numbers of'} questions"


def _listed(names: Iterable[str], most: int = 3) -> str:
    """Each name once; past ``most`` the number of the others."""
    once = list(dict.fromkeys(names))
    shown = once if len(once) <= most else [*once[: most - 1], f"{len(once) - most + 1} others"]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def settings(collected: Collected) -> list[list[str]]:
    """The settings in which a run is not at the defaults, a column per run; the first row is the header.

    The configuration's keys first, then what was said of the run itself (adapter, batch size, seed). Where runs differ
    in a setting, its row has it for every run. Empty where every run is at the defaults.
    """
    default = flat(Config().model_dump(mode="json")) | NOT_TOLD
    columns = []
    for run in collected.runs.values():
        plan = run.manifest["plan"]
        told = {name: plan[name] for name in TOLD if plan.get(name, NOT_TOLD[name]) not in (NOT_TOLD[name], [])}
        columns.append(flat(run.manifest["config"]) | told)
    rows = []
    for name in dict.fromkeys(name for column in columns for name in column):
        usual = _written(default.get(name))
        values = [_written(column.get(name, default.get(name))) for column in columns]
        if set(values) != {usual}:
            rows.append([name, *values, usual])
    return [["setting", *collected.runs, "default"], *rows] if rows else []


def _written(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json_text(value)


def _facts(label: str, run: Run) -> dict[str, str]:
    """What was run."""
    plan, environment = run.manifest["plan"], run.manifest.get("environment", {})
    return {
        "run": label,
        "controller": run.report["controller"],
        "benchmark": f"{run.report['benchmark']} ({plan.get('split') or 'all'}), {run.report['n']} questions",
        "model": str(run.report["model"]),
        "dtype": str(run.manifest["model"].get("dtype") or ""),
        "code": f"nl2sql {environment.get('nl2sql', '?')} {environment.get('commit') or ''}".strip(),
        "command": str(environment.get("command", "")),
        "environment": ", ".join(environment_lines(environment)[1:]).removeprefix("environment: "),
    }


def _dialogues(collected: Collected) -> list[list[str]]:
    """What runs over dialogues matched, a column per run; the first row is the header. Empty without such a run."""
    told = {label: run.report for label, run in collected.runs.items() if "dialogues" in run.report}
    columns = [dict(row[:2] for row in dialogue_rows(report)) for report in told.values()]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [[name, *(column.get(name, "") for column in columns)] for name in names]
    return [["", *told], *rows] if told else []


def _causes(collected: Collected) -> list[dict[str, Any]]:
    """Cause -> items of each run, the most frequent first, with the longest bar's share."""
    by_run = [
        Counter(item["cause"] or "unknown" for item in run.report["items"] if not item["ex"])
        for run in collected.runs.values()
    ]
    names = sorted({name for run in by_run for name in run}, key=lambda name: -max(f[name] for f in by_run))
    most = max((count for run in by_run for count in run.values()), default=1)
    bars = {name: [(run[name], 100 * run[name] / most) for run in by_run] for name in names}
    return [{"name": name, "meaning": CAUSES.get(name, ""), "counts": bars[name]} for name in names]


def _flips(collected: Collected) -> list[dict[str, Any]]:
    return [
        {"run": label, "gate": name, **{"refused": None, **flips}}
        for label, run in collected.runs.items()
        for name, flips in run.report["flips"].items()
        if flips.get("refused") or flips["right_to_wrong"] or flips["wrong_to_right"]
    ]


def _repairs(collected: Collected) -> list[tuple[str, str]]:
    counts = {label: run.report["counts"] for label, run in collected.runs.items()}
    return [(label, repairs_line(of)) for label, of in counts.items() if any(of.get(name) for name in REPAIRS)]
