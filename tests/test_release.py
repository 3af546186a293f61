"""What a release needs besides the code: files that agree with it and with each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import nl2sql

ROOT = Path(__file__).resolve().parent.parent
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_one_version_everywhere() -> None:
    cited = yaml.safe_load(read("CITATION.cff"))
    logged = re.findall(r"^## (\d\S+)", read("CHANGELOG.md"), re.MULTILINE)
    assert cited["version"] == logged[0] == nl2sql.__version__


def test_the_comparison_names_this_version() -> None:
    row = next(line for line in read("REFERENCES.md").splitlines() if line.startswith("| Version read"))
    assert row.split("|")[2].strip().startswith(f"{nl2sql.__version__}, ")


def test_one_list_of_pythons() -> None:
    """The classifiers, and the workflow's jobs: no version is promised that is not tried."""
    project = tomllib.loads(read("pyproject.toml"))["project"]
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert project["requires-python"] == f">={promised[0]}"
    jobs = yaml.safe_load(read(".github/workflows/checks.yml"))["jobs"]
    tried = [job["strategy"]["matrix"]["python"] for job in jobs.values() if "strategy" in job]
    assert tried and all(versions == promised for versions in tried)


def test_extras_are_pinned_where_ci_installs_them() -> None:
    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    pinned = {
        re.sub(r"[-_.]+", "-", name.lower()) for name in re.findall(r"^([\w.-]+)==", read("constraints.txt"), re.M)
    }
    installed = re.findall(r"nl2sql-harness\[([\w,-]+)\]", extras["all"][0])[0].split(",")
    named = [extra for part in re.findall(r'\.\[([\w,-]+)\]"', read(".ci/run")) for extra in part.split(",")]
    for extra in {*installed, *named}:
        wanted = {re.split(r"[\[<>=]", requirement)[0].lower() for requirement in extras[extra]} - {"nl2sql-harness"}
        assert {re.sub(r"[-_.]+", "-", name) for name in wanted} <= pinned, extra


def test_everything_that_runs_a_local_model_installs_the_extra() -> None:
    for name in ("Makefile", "Dockerfile"):
        assert '".[local,grammar]"' in read(name), name


def test_workflows_run_targets_that_exist() -> None:
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        jobs: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"]
        commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
        targets = [words[1] for command in commands if (words := command.split())[0] == "make"]
        assert all(re.search(rf"^{target}:", MAKEFILE, re.MULTILINE) for target in targets)


def test_hooks_run_what_lint_runs() -> None:
    [repository] = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    hooks = {hook["entry"].removeprefix(".venv/bin/") for hook in repository["hooks"]}
    lint = MAKEFILE.partition("\nlint:")[2].partition("\n\n")[0]
    asked = {line.removeprefix("\t$(BIN)/").removesuffix(" .") for line in lint.splitlines()[1:]}
    assert hooks == asked


@pytest.mark.parametrize("name", re.findall(r"^COPY (.+) \S+$", read("Dockerfile"), re.MULTILINE))
def test_the_image_copies_what_is_there(name: str) -> None:
    assert all((ROOT / path).exists() for path in name.split())


def test_the_image_copies_what_the_wheel_is_built_of() -> None:
    wheel = tomllib.loads(read("pyproject.toml"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {path.split("/")[0] for path in (*wheel["packages"], *wheel["force-include"])}
    copied = " ".join(re.findall(r"^COPY (.+) \S+$", read("Dockerfile"), re.MULTILINE)).split()
    assert needed <= set(copied)


def test_issue_templates_lead_somewhere() -> None:
    for file in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md"):
        text = file.read_text(encoding="utf-8")
        assert {"name", "about"} <= set(yaml.safe_load(text.split("---")[1]))
        for target in re.findall(r"\]\(([^)]+)\)", text):
            assert (file.parent / target).exists(), f"{file.name}: {target}"


def test_the_cards_have_the_front_matter_of_hugging_face() -> None:
    from huggingface_hub import DatasetCard, ModelCard

    model, data = ModelCard.load(ROOT / "docs/model-card.md").data, DatasetCard.load(ROOT / "data/README.md").data
    assert (model.library_name, model.license) == ("peft", "cc-by-sa-4.0")
    assert "Qwen/Qwen2.5-Coder-1.5B-Instruct" in model.base_model and "text-to-sql" in model.tags
    assert data.license == "apache-2.0" and "text-to-sql" in data.tags
    for config in data.to_dict()["configs"]:
        assert (ROOT / "data" / config["data_files"]).is_file()
