"""The executor that is this process: episodes in threads, statements in its pool of query processes.

A dialogue whose turns rest on each other's answers is one thread's work, turn by turn.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from nl2sql.agents.controllers import episode_model, run_episode
from nl2sql.agents.record import Episode
from nl2sql.benchmarks.dialogues import interactions
from nl2sql.config import Config
from nl2sql.eval.scores import Judged
from nl2sql.eval.scoring import judge
from nl2sql.eval.settings import Settings
from nl2sql.interfaces import Benchmark, Question, Resources
from nl2sql.runs.dialogues import in_dialogue
from nl2sql.runs.job import Job
from nl2sql.runs.plan import Plan
from nl2sql.runs.progress import Bar, Work, most_calls
from nl2sql.runs.turns import Watch


class Local:
    """Carries out everything here; it has no state."""

    def check(self, plan: Plan, config: Config) -> None:
        """Everything that can be planned can be done here."""

    def episodes(self, job: Job) -> None:
        """Run episodes in as many threads as the model batches; each is kept as it ends."""
        units = interactions(job.questions) if job.own else [[question] for question in job.questions]
        cancel = threading.Event()
        workers = min(len(units), max(1, int(getattr(job.model, "batch_size", 8))))
        watch = Watch(job.config, len(job.questions))
        work = Work(len(job.questions), most_calls(job.controller.name, job.config))
        bar = Bar(job.controller.name, work, shown=job.progress)
        with bar, ThreadPoolExecutor(workers, thread_name_prefix="episode") as pool:
            try:
                futures = [pool.submit(_episodes, job, unit, cancel, bar) for unit in units]
                for future in as_completed(futures):
                    for episode in future.result():
                        watch.see(episode)
                    job.advance(len(future.result()))
            except BaseException:
                cancel.set()  # what runs ends at its next model call
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def verdicts(
        self,
        benchmark: Benchmark,
        questions: Sequence[Question],
        predictions: Mapping[str, Mapping[str, str]],
        settings: Settings,
    ) -> Judged:
        """The verdicts, found in ``settings.pool``."""
        return judge(benchmark, questions, predictions, settings)


LOCAL = Local()


def _episodes(job: Job, questions: Sequence[Question], cancel: threading.Event, bar: Bar) -> list[Episode | None]:
    """Run and keep episodes one after the other."""
    done = []
    for question in questions:
        done.append(_episode(job, job.own.asked(question) if job.own else question, cancel, bar))
        if not cancel.is_set():
            bar.finished(question.id)
    return done


def _episode(job: Job, question: Question, cancel: threading.Event, bar: Bar) -> Episode | None:
    """Run and keep one episode; one that the user stopped is owed, not kept."""
    if cancel.is_set():
        return None

    def resources() -> Resources:
        mine = bar.watched(episode_model(job.model, question, job.controller.name), question.id)
        database = job.benchmark.database(question.db_id)
        return Resources(mine, database, job.tools, job.gates, cancel=cancel)

    episode = run_episode(in_dialogue(job.controller, question), question, resources, job.config)
    if not cancel.is_set():
        job.keep(episode)
        if job.own:
            job.own.add(episode)
    return episode
