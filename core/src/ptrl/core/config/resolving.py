"""From validated sections to a plan: names are found, options validated, and the parts held together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from ptrl.core.config.checks import check_domain, check_whole, warnings_of
from ptrl.core.config.local_code import LocalCode
from ptrl.core.config.reading import problems_of, read_settings, read_table
from ptrl.core.contracts.hooks import describe
from ptrl.core.errors import ConfigError, Problem, PtrlError, RegistryError, did_you_mean
from ptrl.core.plan import ComponentPlan, DomainPlan, RewardPlan, RunPlan
from ptrl.core.registry.entries import scan
from ptrl.core.registry.loading import Loaded, load
from ptrl.core.settings import ComponentTable, OptimizerSection, RewardTable, RunSettings


def load_plan(
    path: Path,
    *,
    overrides: Sequence[str] = (),
    allow_local_code: bool = False,
) -> RunPlan:
    """Reads a config file and finds everything it names.

    Args:
        path: The config file, or the `config.json` of a run.
        overrides: `key=value` pairs.
        allow_local_code: Whether `file:` components may be imported.

    Raises:
        ConfigError: With every problem found, each by its key.
    """
    settings = read_settings(path, overrides)
    return resolve_plan(settings, file=path, folder=_origin(path), allow_local_code=allow_local_code)


def _origin(path: Path) -> Path | None:
    """Returns the folder in which a run was configured, of the `config.json` that it keeps."""
    lock = path.with_name("lock.json")
    if path.name != "config.json" or not lock.is_file():
        return None
    folder = read_table(lock).get("folder")
    return Path(folder) if isinstance(folder, str) else None


def resolve_plan(
    settings: RunSettings,
    *,
    file: Path | None = None,
    folder: Path | None = None,
    allow_local_code: bool = False,
) -> RunPlan:
    """Finds every component that the settings name, and validates its options.

    Args:
        settings: The sections.
        file: Where they were read from, for messages.
        folder: What `file:` components are relative to; the file's folder by default.
        allow_local_code: Whether `file:` components may be imported.

    Raises:
        ConfigError: With every problem found, each by its key.
    """
    folder = folder or (file.parent if file else Path())
    resolver = _Resolver(LocalCode(folder.resolve(), allow_local_code))
    plan = resolver.plan(settings, str(file) if file else None)
    if plan is None:
        raise ConfigError(resolver.problems, str(file) if file else None)
    problems = [problem for domain in plan.domains for problem in check_domain(domain)] + check_whole(plan)
    if problems:
        raise ConfigError(problems, plan.file)
    return plan


class _Resolver:
    """Collects problems instead of stopping at the first."""

    def __init__(self, local_code: LocalCode) -> None:
        self.local_code = local_code
        self.problems: list[Problem] = []

    def plan(self, settings: RunSettings, file: str | None) -> RunPlan | None:
        """Returns the plan, or None when there are problems."""
        domains = [
            DomainPlan(
                name=name,
                environment=environment,
                rewards=tuple(reward for reward in rewards if reward is not None),
            )
            for name, section in settings.domains.items()
            for environment in [self.component("environments", f"domains.{name}.environment", section.environment)]
            for rewards in [
                [self.reward(f"domains.{name}.rewards.{key}", key, table) for key, table in section.rewards.items()]
            ]
            if environment is not None
        ]
        sampler = self.component("samplers", "sampler", settings.sampler)
        filters = [self.component("filters", f"filters.{index}", table) for index, table in enumerate(settings.filters)]
        observers = [
            self.component("observers", f"observers.{index}", table) for index, table in enumerate(settings.observers)
        ]
        optimizer = self.optimizer(settings.optimizer)
        if self.problems or sampler is None or optimizer is None:
            return None
        return RunPlan(
            settings=settings,
            domains=tuple(domains),
            sampler=sampler,
            filters=tuple(filter(None, filters)),
            optimizer=optimizer,
            observers=tuple(filter(None, observers)),
            warnings=(*warnings_of(settings), *_unknown_engines(settings.optimizer)),
            local_code=self.local_code.hashes,
            folder=str(self.local_code.folder),
            file=file,
        )

    def component(self, kind: str, label: str, table: ComponentTable) -> ComponentPlan | None:
        """Returns one component's plan, or None after noting its problems."""
        found = self._find(kind, label, table.use, table.version, table.options)
        return ComponentPlan(label=label, loaded=found[0], config=found[1]) if found else None

    def reward(self, label: str, name: str, table: RewardTable) -> RewardPlan | None:
        """Returns one reward's plan, or None after noting its problems."""
        found = self._find("rewards", label, table.use, table.version, table.options)
        if found is None:
            return None
        shown = table.label or name
        return RewardPlan(label=label, loaded=found[0], config=found[1], key=name, name=shown, table=table)

    def optimizer(self, section: OptimizerSection) -> ComponentPlan | None:
        """Returns the optimizer's plan; its options stand in its family's table."""
        label = f"optimizer.{section.use.partition('.')[0]}"
        found = self._find("optimizers", label, section.use, section.version, section.options)
        return ComponentPlan(label=label, loaded=found[0], config=found[1]) if found else None

    def _find(
        self, kind: str, label: str, name: str, version: int | None, options: Mapping[str, Any]
    ) -> tuple[Loaded, BaseModel] | None:
        try:
            loaded = self.local_code.load(kind, name) if name.startswith("file:") else load(kind, name)
        except (RegistryError, PtrlError) as error:
            self.problems.append(Problem(key=f"{label}.use", message=str(error)))
            return None
        factory = loaded.factory
        if version is not None and version != factory.version:
            message = f"{name} has version {factory.version}, the config asserts {version}"
            fix = "learning results may differ; install the version that was used, or change the assertion"
            self.problems.append(Problem(key=f"{label}.version", message=message, fix=fix))
            return None
        try:
            return loaded, factory.Config.model_validate(dict(options))
        except ValidationError as error:
            self.problems.extend(problems_of(error, factory.Config, label))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.problems.append(Problem(key=label, message=f"the options of {name} fail: {describe(error)}"))
        return None


def _unknown_engines(section: OptimizerSection) -> Iterator[str]:
    """Yields a warning for each engine's table whose family no installed optimizer has."""
    families = {entry.name.partition(".")[0] for entry in scan()[1] if entry.kind == "optimizers"}
    for key in section.model_extra or {}:
        if key not in families and key != section.use.partition(".")[0]:
            yield f"optimizer.{key}: no installed optimizer reads this table; {did_you_mean(key, families)}"
