"""A package of parts, as docs/adding/plugin.md shows it, built and installed by pip, and used by name."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import programs
import pytest

from nl2sql.config.plugins import own_function, plugins
from nl2sql.errors import UsageError

PAGE = (Path(__file__).parents[1] / "docs" / "adding" / "plugin.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages that has the page's."""
    source, target = tmp_path_factory.mktemp("shop_parts"), tmp_path_factory.mktemp("installed")
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    broken = toml.replace(
        'look_up = "shop_parts:look_up"', 'look_up = "shop_parts:look_up", gone = "no_such_module:it"'
    )
    (source / "pyproject.toml").write_text(broken, encoding="utf-8")
    (source / "shop_parts.py").write_text(code, encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    done = subprocess.run([*pip, "--target", str(target), str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def nl2sql(installed: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command where the packages of the folder ``installed`` are installed."""
    plugins.cache_clear()
    with mock.patch.object(sys, "path", [str(installed), *sys.path]):
        done = programs.command(*arguments, cwd=cwd)
    plugins.cache_clear()
    return done


def test_parts_are_listed_and_one_that_cannot_be_imported_is_named(installed: Path, tmp_path: Path) -> None:
    done = nl2sql(installed, tmp_path, "new", "plugins", "--check", "--json")
    assert done.returncode == 1, done.stderr
    ours = [row for row in json.loads(done.stdout) if row["package"] == "shop-parts 0.1"]
    kinds = ["controllers", "tools", "tools", "gates", "rules", "benchmarks", "models", "engines"]
    assert [row["kind"] for row in ours] == kinds
    (failed,) = (row for row in ours if "error" in row)
    assert failed["name"] == "gone" and "no_such_module" in failed["error"] and "shop-parts" in failed["error"]
    listed = nl2sql(installed, tmp_path, "new", "plugins")
    assert listed.returncode == 0 and re.search(
        r"^gates +no_star +shop-parts 0.1 +shop_parts:no_star$", listed.stdout, re.M
    )


def test_a_benchmark_a_controller_and_a_rule_of_a_package_score_by_name(installed: Path, tmp_path: Path) -> None:
    asked = ["--benchmark", "shop", "--controller", "count_all", "--limit", "4", "--no-control", "--json", "--quiet"]
    settings = ["-c", "eval.rule=same_size", "-c", "eval.replicas=0", "--model", "parrot:nothing", "--out", "run"]
    done = nl2sql(installed, tmp_path, "eval", *asked, *settings)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["metrics"]["VA"]["value"] == 1.0 and "EX[same_size]" in report["metrics"]
    assert "empty_result" not in report["suspicions"]  # the controller gave no rows along
    [trace, *_] = (tmp_path / "run" / "traces.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(trace)["rows"] and json.loads(trace)["columns"] == ["count(*)"]
    again = nl2sql(installed, tmp_path, "eval", "--resume", "run", "--trust", "--json", "--quiet")
    assert again.returncode == 0 and json.loads(again.stdout)["metrics"] == report["metrics"]


@pytest.mark.parametrize("named", ["look_up", "shop_parts:look_up"])
def test_tools_and_gates_of_a_package_stand_in_the_loop(named: str, installed: Path, tmp_path: Path) -> None:
    model = 'parrot:Action: look_up[{"word": "active"}]'
    options = ["--model", model, "--controller", "react_plus", "-c", "react.max_steps=2", "--json"]
    ask = ["ask", "How many customers are there?", "--db", "packaged:scale_models", *options]
    done = nl2sql(installed, tmp_path, *ask, "--tool", named, "--gate", "no_star")
    assert "an order in the last 90 days" in done.stdout, done.stderr
    without = nl2sql(installed, tmp_path, *ask)
    assert without.stdout and "an order in the last 90 days" not in without.stdout
    folder = tmp_path / "run"
    run = ["eval", "--limit", "1", "--no-control", "--quiet", "-c", "eval.replicas=0", *options]
    assert nl2sql(installed, tmp_path, *run, "--tool", named, "--gate", "no_star", "--out", str(folder)).stdout
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["plan"]["tools"] == [named] and manifest["plan"]["gates"] == ["no_star"]
    again = nl2sql(installed, tmp_path, "eval", "--resume", str(folder), "--trust", "--quiet")
    assert "error:" not in again.stderr, again.stderr
    assert "an order in the last 90 days" in (folder / "traces.jsonl").read_text(encoding="utf-8")


def test_a_database_of_a_package_is_opened_by_its_address(installed: Path, shop: Path, tmp_path: Path) -> None:
    options = ["--db", f"file:{shop}", "--controller", "count_all", "--model", "parrot:nothing", "--json"]
    done = nl2sql(installed, tmp_path, "ask", "How many customers are there?", *options)
    assert json.loads(done.stdout)["sql"].startswith("SELECT count(*) FROM "), done.stderr


BROKEN = """
NOTFUN = 3
from nl2sql.eval.rules import Rule
RULE = Rule("mine", lambda *results, **texts: True)
def nothing(*given): return None
def fails(*given): raise ValueError("no luck")
class Half:
    context_window = 4096
    def generate(self, messages, **options): return []
def half(*given): return Half()
"""


@pytest.fixture(scope="module")
def broken(installed: Path) -> Path:
    """The same folder with a package whose plug-ins are no function, give nothing, or raise."""
    about = installed / "broken_parts-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-parts\nVersion: 0.1\n", encoding="utf-8")
    points = [
        f"[nl2sql.{kind}]\nnotfun = broken_parts:NOTFUN\nnothing = broken_parts:nothing\nfails = broken_parts:fails"
        for kind in ("benchmarks", "models", "engines")
    ]
    points[1] += "\nhalf = broken_parts:half"
    points.append("[nl2sql.rules]\nmine = broken_parts:RULE\nnotfun = broken_parts:NOTFUN")
    (about / "entry_points.txt").write_text("\n".join(points), encoding="utf-8")
    (installed / "broken_parts.py").write_text(BROKEN, encoding="utf-8")
    return installed


def test_the_check_finds_what_is_no_function(broken: Path, tmp_path: Path) -> None:
    done = nl2sql(broken, tmp_path, "new", "plugins", "--check", "--json")
    rows = [row for row in json.loads(done.stdout) if row["package"] == "broken-parts 0.1"]
    assert {row["name"] for row in rows if "error" in row} == {"notfun"} and len(rows) == 12
    assert "plugin 'notfun' of broken-parts (broken_parts:NOTFUN) is no function: 3" in {
        row.get("error") for row in rows
    }


@pytest.mark.parametrize(
    ("kind", "option"), [("Benchmark", "--benchmark={}"), ("Model", "--model={}:x"), ("Database", "--db={}:x")]
)
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("notfun", "(broken_parts:NOTFUN) is no function: 3"),
        ("nothing", "(broken_parts:nothing) gave no {}: NoneType has no"),
        ("fails", "(broken_parts:fails) failed: ValueError: no luck"),
    ],
)
def test_a_plugin_that_does_not_work_is_named(
    kind: str, option: str, name: str, said: str, broken: Path, tmp_path: Path
) -> None:
    given = option.format(name)
    command = ["eval", "--limit", "1"] if kind == "Benchmark" else ["ask", "How many?", "--controller", "count_all"]
    command += [] if kind == "Model" else ["--model", "parrot:nothing"]
    command += ["--db", "packaged:scale_models"] if kind == "Model" else []
    done = nl2sql(broken, tmp_path, *command, given)
    wanted = f"error: plugin {name!r} of broken-parts {said.format(kind)}"
    assert done.returncode == 2 and wanted in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_model_that_lacks_a_member_is_named_before_it_is_asked(broken: Path, tmp_path: Path) -> None:
    done = nl2sql(broken, tmp_path, "ask", "How many?", "--db", "packaged:scale_models", "--model", "half:x")
    assert done.returncode == 2 and "(broken_parts:half) gave no Model: Half has no 'count_tokens'" in done.stderr


def test_a_plugin_s_text_may_be_longer_than_a_path(installed: Path, tmp_path: Path) -> None:
    query = "SELECT count(*) FROM customers" + " " * 300
    options = ["--db", "packaged:scale_models", "--model", f"parrot:{query}", "--controller", "single_shot"]
    done = nl2sql(installed, tmp_path, "ask", "How many customers are there?", *options)
    assert done.returncode == 0 and not done.stderr, done.stderr
    told = nl2sql(installed, tmp_path, "models", "info", f"parrot:{query}")
    assert told.returncode == 0 and "hub" not in told.stdout and "installed package" in told.stdout


def test_a_rule_may_be_a_record(broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(broken)
    own = own_function("rules", "broken_parts:RULE")
    assert own is not None and own.function.name == "mine"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--tool", "gone", "--controller", "react"],
            "plugin 'gone' of shop-parts (no_such_module:it) cannot be loaded",
        ),
        (["--tool", "nothing", "--controller", "react"], "no tool 'nothing'; give FILE.py:function"),
        (
            ["--gate", "shop_parts:no_such", "--controller", "react"],
            "gate module 'shop_parts' has no function 'no_such'",
        ),
        (
            ["--tool", "look_up", "--tool", "shop_parts:look_up", "--controller", "react"],
            "two tools are called 'look_up'",
        ),
        (["--tool", "look_up"], "look_up is for a loop, not for 'best'; add --controller react_plus"),
        (
            ["--controller", "no_such_module.of.mine:loop"],
            "controller module 'no_such_module.of.mine' is not installed",
        ),
        (["--controller", "nobody"], "unknown controller 'nobody'; known: single_shot, react,"),
    ],
)
def test_what_is_not_there_is_one_line(arguments: list[str], said: str, installed: Path, tmp_path: Path) -> None:
    asked = ["ask", "How many customers are there?", "--db", "packaged:scale_models", "--model", "parrot:nothing"]
    done = nl2sql(installed, tmp_path, *asked, *arguments)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_module_that_fails_on_import_is_told_from_one_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fails_on_import.py").write_text("import no_such_thing_at_all\n", encoding="utf-8")
    (tmp_path / "leaves_on_import.py").write_text("raise SystemExit(3)\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        UsageError,
        match="rule module 'fails_on_import' failed on import: ModuleNotFoundError: No module named 'no_such",
    ):
        own_function("rules", "fails_on_import:rule")
    with pytest.raises(UsageError, match="rule module 'leaves_on_import' failed on import: SystemExit: 3"):
        own_function("rules", "leaves_on_import:rule")
