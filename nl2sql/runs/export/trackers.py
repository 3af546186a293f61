"""A run in an experiment tracker: MLflow (a SQLite file, or a tracking server), Weights & Biases (offline).

Both get the same: what was run as parameters, ``Contents.numbers`` as metrics, and a table of episodes; the state of
the run says whether it is finished. Neither package sends its own reports of usage and errors: they are switched off.
Weights & Biases writes a folder, and only the user's ``wandb sync`` sends it. An exported run is known again by
``Contents.identity``: MLflow takes it once, and in Weights & Biases it has the same id. Needs the extra ``mlflow`` or
``wandb``. Not covered: traces (``--to otel``), live logging while a run goes on.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl2sql.agents.record import json_text
from nl2sql.errors import Nl2SqlError, UsageError, one_line
from nl2sql.machine import install_command
from nl2sql.runs.export.contents import ROW, Contents

if TYPE_CHECKING:
    from mlflow import MlflowClient

PROJECT = "nl2sql"  # the experiment of MLflow, the project of Weights & Biases
TAG = "nl2sql.export"
LONGEST = 500  # characters of a parameter
AT_ONCE = 100  # parameters, and metrics, that one request of MLflow takes
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
}
UNNAMED = re.compile(r"[^\w\-. :/]+")  # what MLflow takes in no name


def to_mlflow(contents: Contents, address: str) -> int:
    """Log the run in the experiment ``nl2sql`` of the tracking server or store at ``address``; the number of episodes.

    address: ``sqlite:////home/me/mlflow.db`` or ``http://localhost:5000``. Metrics are named ``EX.bag``, since MLflow
    takes no brackets. Raises UsageError where the package is missing or the run is there already, Nl2SqlError where the
    store fails.
    """
    os.environ.update(QUIET)
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.ERROR)
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise UsageError(f"MLflow is not installed: {install_command('mlflow')}") from None
    try:
        return _log_to_mlflow(contents, MlflowClient(tracking_uri=address), address)
    except (MlflowException, OSError) as error:
        raise Nl2SqlError(f"MLflow at {address} did not take the run: {one_line(error, 240)}") from None


def _log_to_mlflow(contents: Contents, client: MlflowClient, address: str) -> int:
    from mlflow.entities import Metric, Param, RunTag

    known = client.get_experiment_by_name(PROJECT)
    if known is not None:
        experiment = known.experiment_id
    else:  # by default a store in a file would put its artifacts where the command happens to be typed
        beside = Path(address.removeprefix("sqlite:///")).parent / "mlartifacts"
        local = address.startswith("sqlite:///")
        experiment = client.create_experiment(PROJECT, artifact_location=beside.as_uri() if local else None)
    if there := client.search_runs([experiment], f"tags.`{TAG}` = '{contents.identity}'"):
        raise UsageError(f"MLflow at {address} holds this run already, as {there[0].info.run_id}; nothing was written")
    began = round(contents.began.timestamp() * 1000)
    tags = {TAG: contents.identity, "nl2sql.state": contents.state}
    run = client.create_run(experiment, start_time=began, tags=tags, run_name=contents.name).info.run_id
    params = [Param(UNNAMED.sub(".", name), str(value)[:LONGEST]) for name, value in contents.facts().items()]
    metrics = [
        Metric(UNNAMED.sub(".", name).replace("./", "/").strip("."), value, began, 0)
        for name, value in contents.numbers().items()
    ]
    for part in range(0, max(len(params), len(metrics)), AT_ONCE):
        client.log_batch(run, metrics[part : part + AT_ONCE], params[part : part + AT_ONCE], list[RunTag]())
    with tempfile.TemporaryDirectory() as folder:
        count = _write_rows(contents, Path(folder) / "episodes.jsonl")
        client.log_artifacts(run, folder)
    seconds = contents.run.report["usage"].get("seconds", 0)
    # an unfinished run stays RUNNING
    if not contents.owed:
        client.set_terminated(run, "FINISHED", began + round(1000 * seconds))
    return count


def _write_rows(contents: Contents, path: Path) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for episode in contents.episodes():
            file.write(json_text(episode.row()) + "\n")
            count += 1
    return count


def to_wandb(contents: Contents, out: Path) -> tuple[int, Path]:
    """Write an offline run below the folder ``out``; the number of episodes, and the folder that ``wandb sync`` takes.

    Raises UsageError where the package is missing or the folder cannot be made, Nl2SqlError where wandb fails.
    """
    os.environ.update(QUIET)
    try:
        import wandb
    except ImportError:
        raise UsageError(f"Weights & Biases is not installed: {install_command('wandb')}") from None
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out} cannot be made: {error.strerror}; name another folder") from None
    settings = wandb.Settings(
        silent=True,
        console="off",
        disable_git=True,
        disable_code=True,
        x_disable_stats=True,
        x_disable_meta=True,
        x_save_requirements=False,
    )
    rows = [[_cell(value) for value in episode.row().values()] for episode in contents.episodes()]
    try:
        run = wandb.init(
            mode="offline",
            dir=str(out),
            project=PROJECT,
            name=contents.name,
            id=contents.identity,
            job_type=str(contents.run.report["controller"]),
            tags=["unfinished"] if contents.owed else ["done"],
            config=contents.facts(),
            settings=settings,
        )
        run.log({"episodes": wandb.Table(columns=list(ROW), data=rows)})
        run.summary.update(contents.numbers())
        run.finish()
    except wandb.Error as error:
        raise Nl2SqlError(f"Weights & Biases could not write the run: {one_line(error, 240)}") from None
    return len(rows), Path(run.settings.sync_dir)


def _cell(value: Any) -> Any:
    """A value of a column that has one type: numbers and verdicts stay, anything else is text."""
    return value if value is None or isinstance(value, bool | int | float) else str(value)
