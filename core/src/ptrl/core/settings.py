"""The sections of a config file. A key that is not here is an error that names its neighbours."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from ptrl.core.errors import ConfigError, Problem
from ptrl.core.records import RewardRole

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
"""A name that can stand in a path and in a metric's key."""

Weight = Annotated[float, Field(ge=0, le=1e6)]
"""A reward's weight; the bound keeps sums of any rewards finite."""


class Section(BaseModel):
    """Base of every section: frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class Secret(Section):
    """A secret named by the environment variable that holds it: `{ env = "NAME" }`. Its value is never written."""

    env: str = Field(min_length=1)
    """Name of the environment variable."""

    def reveal(self) -> str:
        """Returns the secret.

        Raises:
            ConfigError: When the variable is not set.
        """
        try:
            return os.environ[self.env]
        except KeyError:
            problem = Problem(key="env", message=f"{self.env} is not set", fix=f"export {self.env}=...")
            raise ConfigError([problem]) from None


class ComponentTable(BaseModel):
    """A component by name, with its options beside `use`."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True, allow_inf_nan=False)

    use: str = Field(min_length=1)
    """Name of the component: `family.name`."""

    version: int | None = None
    """Asserts the component's version; None accepts any."""

    @property
    def options(self) -> dict[str, Any]:
        """Everything that is not reserved: the component's own options."""
        return dict(self.model_extra or {})


class RewardTable(ComponentTable):
    """One reward of a domain."""

    label: Name | None = None
    """The name under which it is reported; the table's key by default."""

    weight: Weight = 1.0
    """Bounds its influence on the training reward; 0 makes it a metric only. Unused by gates."""

    role: RewardRole = "outcome"
    """`outcome` carries the metric, exactly one per domain; `gate` multiplies; the others add."""

    schedule: tuple[tuple[float, Weight], ...] = ()
    """Points (progress 0 to 1, weight), ascending; linear between them, instead of `weight`."""

    only_if_solved: bool = False
    """Pays only where the outcome reward's metric is 1, so that form alone never pays."""

    timeout: Annotated[float, Field(gt=0)] | None = None
    """Seconds per rollout; the reward's own by default."""

    run_in: Literal["process", "inline"] | None = None
    """Where it runs; the reward's own word by default."""

    @field_validator("schedule")
    @classmethod
    def _check_schedule(cls, points: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        progress = [point[0] for point in points]
        if progress != sorted(set(progress)) or any(not 0 <= value <= 1 for value in progress):
            raise ValueError("points need ascending progress between 0 and 1")
        return points

    def weight_at(self, progress: float) -> float:
        """Returns the weight at a share of the run that is done."""
        points = self.schedule
        if not points:
            return self.weight
        if progress <= points[0][0]:
            return points[0][1]
        for (left, low), (right, high) in pairwise(points):
            if progress <= right:
                return low + (high - low) * (progress - left) / (right - left)
        return points[-1][1]


class RolloutLog(Section):
    """Which rollouts are written to the run folder."""

    every: int = Field(default=1, ge=0)
    """Write the rollouts of each n-th step; 0 writes none."""

    groups: int | None = Field(default=None, ge=1)
    """At most this many groups of a step; None writes all."""

    tokens: bool = False
    """Also write token ids, loss mask and log-probabilities."""


class RunSection(Section):
    """The run as a whole."""

    name: Name
    """Names the run folder; letters, digits, `.`, `_` and `-`."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of everything that is random."""

    steps: int = Field(gt=0)
    """Number of optimizer steps."""

    folder: str = "runs"
    """Where run folders are made."""

    checkpoint_every: int = Field(default=50, ge=0)
    """Save a checkpoint each n steps; 0 saves one at the end only."""

    keep_checkpoints: int = Field(default=2, ge=1)
    """How many checkpoints are kept."""

    rollouts: RolloutLog = RolloutLog()
    """Which rollouts are written."""


class ModelSection(Section):
    """The policy's weights and tokenizer."""

    path: str = Field(min_length=1)
    """A folder, a hub id, or a package's model: `package:MODULE/FOLDER`."""

    revision: str | None = None
    """Revision of a hub model."""

    initialize: Literal["pretrained", "random"] = "pretrained"
    """`random` takes the architecture and tokenizer and draws new weights from the run's seed."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Weights' type; `auto` is the checkpoint's own."""

    chat_template: str | None = None
    """File of a Jinja chat template to use instead of the tokenizer's."""


class KLSection(Section):
    """The penalty for leaving the initial policy."""

    coefficient: float = Field(default=0.0, ge=0)
    """Weight of the penalty; 0 keeps no reference model."""

    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Schulman's estimators of KL(policy || reference)."""

    apply: Literal["loss", "reward"] = "loss"
    """Where the penalty is taken: in the loss, or from each token's reward."""


class TrainingSection(Section):
    """Core's own training keys: every engine takes these, or refuses a key by name."""

    estimator: Literal["reinforce", "reinforce_baseline", "rloo", "group_norm", "dr_grpo"] = "rloo"
    """How advantages are estimated from a group's rewards."""

    composition: Literal["scaled", "sum"] = "scaled"
    """`scaled` divides each component by its running deviation, so that a weight bounds its influence."""

    reward_clip: float = Field(default=5.0, gt=0)
    """Bound on each scaled component before it is weighted."""

    prompts: int = Field(default=32, ge=1)
    """Groups per step."""

    group_size: int = Field(default=8, ge=1)
    """Rollouts per group."""

    learning_rate: float = Field(default=1e-6, gt=0)
    """Peak learning rate."""

    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """How the learning rate falls after the warm-up, over the run's steps."""

    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises linearly."""

    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay."""

    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    """AdamW's moment decays."""

    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are clipped to this norm."""

    max_new_tokens: int = Field(default=512, ge=1)
    """Limit on all tokens after the prompt, over all turns, the environment's included."""

    max_length: int | None = Field(default=None, ge=1)
    """Limit on prompt and response together; the model's own context by default."""

    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature; log-probabilities are those of the tempered distribution."""

    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling's share."""

    clip: tuple[float, float] = (0.2, 0.2)
    """Clip range of the probability ratio: 1 - low to 1 + high."""

    kl: KLSection = KLSection()
    """Penalty for leaving the initial policy."""

    entropy: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""

    aggregation: Literal["token", "sequence", "constant"] = "token"
    """Mean over all tokens of a batch, mean of each rollout's mean, or of its sum over `max_new_tokens`."""

    updates: int = Field(default=1, ge=1)
    """Optimizer updates per step: a step's groups are split into that many parts."""

    epochs: int = Field(default=1, ge=1)
    """Passes over a step's groups."""

    micro_batch_tokens: int = Field(default=16384, ge=1)
    """Tokens per forward pass; gradients accumulate over passes."""

    threads: int = Field(default=0, ge=0)
    """CPU threads of the model's arithmetic; 0 leaves torch's default."""

    @field_validator("clip")
    @classmethod
    def _check_clip(cls, clip: tuple[float, float]) -> tuple[float, float]:
        if not (0 <= clip[0] < 1 and clip[1] >= 0):
            raise ValueError("expected [low, high] with 0 <= low < 1 and high >= 0")
        return clip


class DomainSection(Section):
    """One domain: an environment and the rewards that judge it."""

    environment: ComponentTable
    """Gives the tasks and answers the policy's turns."""

    rewards: dict[Name, RewardTable] = Field(min_length=1)
    """Rewards by label; exactly one has the role `outcome`."""


class EvaluationSection(Section):
    """Measuring the policy on held-out tasks, always before and after."""

    every: int = Field(default=0, ge=0)
    """Also each n steps; 0 for before and after only."""

    tasks: int = Field(default=200, ge=1)
    """Held-out tasks per domain."""

    during_tasks: int | None = Field(default=None, ge=1)
    """Tasks per domain of the evaluations in between; as many as `tasks` by default."""

    decoding: tuple[Literal["greedy", "sampled"], ...] = Field(default=("greedy", "sampled"), min_length=1)
    """How completions are made before and after; the first alone is used in between."""

    batch: int = Field(default=256, ge=1)
    """Episodes in flight at a time."""


class OptimizerSection(BaseModel):
    """The optimizer by name; its own keys stand in a table named after its family."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)

    use: str = Field(default="grpo.local", min_length=1)
    """Name of the optimizer."""

    version: int | None = None
    """Asserts its version."""

    @property
    def options(self) -> dict[str, Any]:
        """The options of the optimizer that is used: those of its family's table."""
        return dict((self.model_extra or {}).get(self.use.partition(".")[0], {}))

    @model_validator(mode="after")
    def _check_tables(self) -> OptimizerSection:
        for key, value in (self.model_extra or {}).items():
            if not isinstance(value, dict):
                family = self.use.partition(".")[0]
                raise ValueError(f"{key!r} is not a table; engine keys stand under [optimizer.{family}]")
        return self


class RunSettings(Section):
    """A whole config file."""

    run: RunSection
    """The run as a whole."""

    model: ModelSection | None = None
    """The policy; a scoring or endpoint evaluation needs none."""

    training: TrainingSection = TrainingSection()
    """Training keys that every engine takes or refuses by name."""

    sampler: ComponentTable = ComponentTable(use="samplers.shuffle")
    """Decides what is practised next."""

    filters: tuple[ComponentTable, ...] = ()
    """Decide which groups are learnt from; the first that does not keep a group decides."""

    domains: dict[Name, DomainSection] = Field(min_length=1)
    """Domains by name; `mean` is the mean's."""

    @field_validator("domains")
    @classmethod
    def _check_domains(cls, domains: dict[str, DomainSection]) -> dict[str, DomainSection]:
        if "mean" in domains:
            raise ValueError("no domain may be called `mean`, which summaries use for the mean of all")
        return domains

    evaluation: EvaluationSection = EvaluationSection()
    """Measuring the policy on held-out tasks."""

    optimizer: OptimizerSection = OptimizerSection()
    """Updates the policy."""

    observers: tuple[ComponentTable, ...] = (
        ComponentTable(use="core.console"),
        ComponentTable(use="core.jsonl"),
    )
    """Watch the run."""
