import pytest

from ptrl.core import Rollout, Score, Task
from ptrl_plugin_math.answer import Answer


@pytest.fixture(scope="session")
def judge():
    """Judges one completion and returns (value, status, reason)."""

    def run(text, expected, **options):
        task = Task(key="t", messages=(), reference=expected)
        [verdict] = Answer(Answer.Config(**options)).score([Rollout(task=task, text=text)])
        if isinstance(verdict, Score):
            return verdict.value, verdict.status, verdict.info["reason"]
        return verdict, "ok", None

    return run
