import pytest

from ptrl.core import Rollout, Score, Task


@pytest.fixture(scope="session")
def judge():
    """Scores texts and returns (value, reason) pairs."""
    task = Task(key="t", messages=())

    def run(reward, *texts):
        verdicts = reward.score([Rollout(task=task, text=text) for text in texts])
        assert len(verdicts) == len(texts)
        return [
            (verdict.value, verdict.info["reason"]) if isinstance(verdict, Score) else (verdict, None)
            for verdict in verdicts
        ]

    return run
