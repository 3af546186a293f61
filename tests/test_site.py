"""The pages: the generated ones are current, the tutorial runs, every name has a page, the site opens in a browser."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import chromium
import programs
import pytest

ROOT = Path(__file__).resolve().parent.parent
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
GENERATED = ("cli.md", "configuration.md", "api.md")
# of SQL, of structured queries, of any programmer, and names that stand in capitals
WORDS = set(
    re.findall(
        r"\w+",
        """
AFTER ALL ALTERNATIVE AND APPROACH AS ATTACH AVG BEFORE BETWEEN BY CASE CAST CHECK COALESCE CONCAT CONDITION
CONSTRAINT COUNT COUNTD CURDATE DATE DIMENSION DISTINCT EXCEPT EXISTS EXPLAIN F1 FALSE FFFD FILE FILTER FOLDER
FROM FULL FUNCTION GROUP HAVING HOST IF IIF IN INNER INTERSECT IS JOIN JULIANDAY L6 LAG LASTN LEFT LIKE LIMIT
LOWER MATCH MAX MEASURE MIN NAME NATURAL NEXTN NOT NULL NVIDIA OFFSET ON OR ORDER OUTER PRAGMA Q3 Q4 QUERIES
RANGE READ README RECURSIVE REFERENCES REL SELECT SET SIMILAR SPEC SPLIT STRFTIME SUBSTRING SUCCESSFUL SUM T1 T2
TOOLS TOP TRUE UNION UPPER USING VALUES VIOLATED WHERE WITH YEAR
AI API ASCII CPU CSV CUDA GB H100 HTML HTTP IBM ISO JSON JSONL LM MB MIT MPS SHA SQL TCP URL UTF XML YAML
""",
    )
)
OTHERS = re.compile(r"https?://(?!(www\.)?w3\.org)")  # names of XML are no addresses


def test_the_configuration_reference_is_current() -> None:
    script = ROOT / "scripts" / "generate_config_docs.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_acronym_is_explained() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    known = set(re.findall(r"\w+", " ".join(re.findall(r"^- ([A-Z0-9, ]+):", glossary, re.MULTILINE))))
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)|<[^>]*>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        unknown = set(re.findall(r"\b[A-Z][A-Z0-9]+\b", text)) - known - WORDS
        assert page.name in GENERATED or not unknown, f"{page.name}: explain {sorted(unknown)} in docs/glossary.md"


@pytest.mark.model
@pytest.mark.timeout(600)
def test_the_tutorial_runs_as_it_stands(tmp_path: Path) -> None:
    blocks = re.findall(r"```(\w*)\n(.*?)```", TUTORIAL, re.DOTALL)
    assert [kind for kind, _ in blocks].count("") >= 6
    printed: set[str] = set()
    for kind, text in blocks:
        if kind == "text":  # a recording: seconds, and after the status lines what the command above it has printed
            answered = [line[9:] for line in text.splitlines() if not re.match(r"\$ |.{9}(loading|step|-- )", line)]
            assert len(answered) >= 3 and set(answered) <= printed
            continue
        if kind == "yaml":
            quick = text.replace("limit: 8", "limit: 1\n  dtype: auto")
            (tmp_path / "parts.yaml").write_text(quick, encoding="utf-8")
            continue
        if kind == "python":
            done = programs.code(text, tmp_path)
            assert done.returncode == 0 and "ex_single_shot" in done.stdout.replace("\\", ""), done.stderr
            continue
        for line in text.strip().splitlines():
            words = shlex.split(line.replace("--limit 8", "--limit 1 --dtype auto"), comments=True)
            assert words[0] == "nl2sql"
            done = programs.command(*words[1:], cwd=tmp_path)
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            printed |= set(done.stdout.splitlines())
    assert (tmp_path / "report.html").is_file()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr  # strict: a link or an anchor that leads nowhere ends it
    return folder


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|link|img)[^>]*?(?:src|href)=\"([^\"]+)\"", page.read_text(encoding="utf-8"))
        assert not [address for address in loaded if OTHERS.match(address)], page


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the requests of a test are no news."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.skipif(chromium.find() is None, reason=chromium.INSTALL)
def test_the_pages_of_the_site_open_on_a_phone(address: str) -> None:
    with chromium.Browser(width=390) as browser:
        for name in ("index", "tutorial", "howto", "vizql", "configuration", "api", "adding/tool"):
            browser.visit(f"{address}/{name}.html")
            assert browser.run("document.querySelector('h1').innerText.length") > 3
            assert browser.run("document.documentElement.scrollWidth") <= 390, name  # wide tables scroll in themselves
        assert not browser.errors
        assert not [request for request in browser.requests if OTHERS.match(request.replace(address, ""))]
