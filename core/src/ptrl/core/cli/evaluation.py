"""`ptrl eval`: a run's policy, a local model, or any chat endpoint, on a config's held-out tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from ptrl.core.cli.failures import show_warning
from ptrl.core.cli.options import AllowLocalCode, Json, Overrides
from ptrl.core.text import terminal_safe

if TYPE_CHECKING:
    from ptrl.core.contracts.observer import Evaluation
    from ptrl.core.plan import RunPlan
    from ptrl.core.policy import Policy
    from ptrl.core.session import Session


def evaluate(
    run: Annotated[
        Path | None, typer.Argument(help="A run folder: its config and its policy.", show_default=False)
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A config file, instead of a run folder.", show_default=False)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A folder, hub id or package: model; the endpoint's name of it with --endpoint.",
            show_default=False,
        ),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="An OpenAI-compatible endpoint, such as http://host:8000/v1.",
            show_default=False,
        ),
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Environment variable with the endpoint's API key.", show_default=False),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests to the endpoint at a time.")] = 16,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds that one request may take.")] = 120.0,
    split: Annotated[Literal["train", "test"], typer.Option(help="Which tasks.")] = "test",
    tasks: Annotated[
        int | None, typer.Option(min=1, help="Tasks per domain; the config's by default.", show_default=False)
    ] = None,
    decoding: Annotated[
        Literal["greedy", "sampled", "both"] | None,
        typer.Option(help="How completions are made; the config's by default.", show_default=False),
    ] = None,
    overrides: Overrides = None,
    allow_local_code: AllowLocalCode = False,
    as_json: Json = False,
) -> None:
    """Measure a policy on held-out tasks by the raw metric. Sampling follows the config's [training] keys.

    The exit status is 1 when no rollout got a verdict.
    """
    from ptrl.core.session import Session

    _check_usage(run, config, model, endpoint, api_key_env)
    file, trained, step = _files(run, config, local=endpoint is None and model is None)
    plan = _plan(file, tuple(overrides or ()), allow_local_code)
    session = Session(plan)
    try:
        session.setup()
        session.step = step
        with _policy(session, model or trained, endpoint, api_key_env, concurrency, timeout) as policy:
            found = [_measure(session, policy, split, one, tasks) for one in _decodings(plan, decoding)]
    finally:
        session.close()
    if as_json:
        typer.echo(json.dumps(_plain(found, model or trained, endpoint), indent=2, allow_nan=False))
    else:
        _print(found)
    _warn_of_masked(found)
    if all(evaluation.mean is None for evaluation in found):
        raise typer.Exit(1)


def _check_usage(
    run: Path | None, config: Path | None, model: str | None, endpoint: str | None, api_key_env: str | None
) -> None:
    if (run is None) == (config is None):
        raise typer.BadParameter("name a run folder, or a config with --config", param_hint="RUN")
    if endpoint is not None and model is None:
        raise typer.BadParameter("name the endpoint's model", param_hint="--model")
    if api_key_env is not None and endpoint is None:
        raise typer.BadParameter("it belongs to --endpoint", param_hint="--api-key-env")


def _files(run: Path | None, config: Path | None, *, local: bool) -> tuple[Path, str | None, int]:
    """Returns the config's file; where a run's policy is what is measured, also its folder and steps.

    The number of steps seeds the sampling, so that a run's own last evaluation is repeated.
    """
    from ptrl.core.run_folder import RunFolder

    if run is None:
        assert config is not None
        return config, None, 0
    folder = RunFolder.open(run)
    if not local:
        return folder.config, None, 0
    checkpoint = folder.latest_checkpoint()
    step = folder.load_session_state(checkpoint)[0] if checkpoint is not None else 0
    return folder.config, str(folder.trained_model()), step


def _plan(file: Path, overrides: Sequence[str], allow_local_code: bool) -> RunPlan:
    """Returns the plan without what only a training run has: nobody observes an evaluation."""
    from ptrl.core.config import load_plan

    plan = load_plan(file, overrides=overrides, allow_local_code=allow_local_code)
    return replace(plan, observers=())


def _decodings(plan: RunPlan, wanted: str | None) -> tuple[Literal["greedy", "sampled"], ...]:
    if wanted is None:
        return plan.settings.evaluation.decoding
    return ("greedy", "sampled") if wanted == "both" else (cast(Literal["greedy", "sampled"], wanted),)


@contextmanager
def _policy(
    session: Session,
    model: str | None,
    endpoint: str | None,
    api_key_env: str | None,
    concurrency: int,
    timeout: float,
) -> Iterator[Policy]:
    """Opens the policy, and closes it at the end."""
    from ptrl.core.contracts.hooks import resolve

    if endpoint is None:
        with _local_policy(session, model) as policy:
            yield policy
        return
    from ptrl.core.endpoint import OpenAIEndpoint

    assert model is not None
    chat = OpenAIEndpoint(endpoint, model, api_key_env=api_key_env, concurrency=concurrency, timeout=timeout)
    try:
        yield chat
    finally:
        resolve(chat.close())


@contextmanager
def _local_policy(session: Session, model: str | None) -> Iterator[Policy]:
    """Loads a policy by the config's optimizer."""
    from ptrl.core.contracts import Optimizer
    from ptrl.core.contracts.hooks import Contract
    from ptrl.core.errors import ConfigError, Problem, PtrlError

    section = session.settings.model
    if model is None and section is None:
        problem = Problem(key="model.path", message="missing", fix="name a model in it, or with --model")
        raise ConfigError([problem], session.plan.file)
    contract = Contract(Optimizer)
    label = session.plan.optimizer.label
    contract.add(label, session.plan.optimizer.build())
    try:
        contract.call(label, "setup").unwrap()
        path = model if model is not None else section.path if section is not None else ""
        result = contract.call(label, "policy", session=session, path=path)
        if isinstance(result.error, PtrlError):
            raise result.error
        yield cast("Policy", result.unwrap())
    finally:
        contract.call(label, "close")


def _measure(
    session: Session,
    policy: Policy,
    split: Literal["train", "test"],
    decoding: Literal["greedy", "sampled"],
    tasks: int | None,
) -> Evaluation:
    from rich.console import Console

    with Console(stderr=True).status(f"measuring, {decoding}"):
        return session.evaluate(policy, split, decoding=decoding, tasks=tasks)


def _plain(found: Sequence[Evaluation], model: str | None, endpoint: str | None) -> dict[str, Any]:
    from ptrl.core.cli.tables import masked_reasons
    from ptrl.core.files import finite
    from ptrl.core.session.session import plain_evaluation

    return {
        "model": model,
        "endpoint": endpoint,
        "evaluations": [finite(plain_evaluation(evaluation)) for evaluation in found],
        "masked_reasons": dict(masked_reasons(found)),
    }


def _print(found: Sequence[Evaluation]) -> None:
    from rich import get_console

    from ptrl.core.cli.tables import evaluation_table

    for evaluation in found:
        get_console().print(evaluation_table(evaluation))
    typer.echo(f"in {sum(evaluation.seconds for evaluation in found):.1f} s")


def _warn_of_masked(found: Sequence[Evaluation]) -> None:
    from ptrl.core.cli.tables import masked_reasons

    for reason, count in masked_reasons(found):
        show_warning(f"{count} rollouts got no verdict: {terminal_safe(reason, limit=300)}")
