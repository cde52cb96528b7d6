"""Every way in which somebody else's package can be wrong is a row with a reason and a fix."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ptrl.core import NameConflictError, PluginLoadError, UnknownNameError
from ptrl.core.contracts import KINDS
from ptrl.core.registry import Entry, family_of, forget, scan
from ptrl.core.registry.entries import KIND_NAMES
from ptrl.core.registry.loading import load

GOOD = """
from ptrl.core import Reward
class Good(Reward):
    def score(self, rollouts):
        return [1.0 for _ in rollouts]
"""

Install = Callable[..., Path]


def forget_modules() -> None:
    for name in list(sys.modules):
        if name.startswith(("ptrl_plugin_odd", "odd", "zodd")):
            del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a distribution for real: metadata and a module in a folder of the path."""
    forget_modules()

    def make(
        name: str,
        entries: str,
        code: str | None = GOOD,
        *,
        module: str | None = None,
        version: str = "1.0",
        requires: str = "ptrl-core",
        site: str = "site",
        raw: bytes | None = None,
    ) -> Path:
        folder = tmp_path / site
        information = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        information.mkdir(parents=True)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: s\nRequires-Dist: {requires}\n"
        (information / "METADATA").write_text(metadata)
        (information / "entry_points.txt").write_bytes(raw if raw is not None else entries.encode())
        if code is not None:
            (folder / f"{module or name.replace('-', '_')}.py").write_text(code)
        if str(folder) not in sys.path:
            monkeypatch.syspath_prepend(str(folder))
        importlib.invalidate_caches()
        forget()
        return folder

    yield make
    monkeypatch.undo()
    forget_modules()
    forget()


def row(name: str) -> Entry:
    return next(entry for entry in scan()[1] if entry.name == name)


def rewards(*lines: str) -> str:
    return "[ptrl.rewards]\n" + "\n".join(lines) + "\n"


def test_a_good_plugin_is_listed_without_being_imported_and_then_loads(install: Install) -> None:
    install("ptrl-plugin-odd", rewards("odd.good = ptrl_plugin_odd:Good"))
    assert (row("odd.good").status, row("odd.good").reason) == ("ok", "")
    assert "ptrl_plugin_odd" not in sys.modules
    assert load("rewards", "odd.good").factory.__name__ == "Good"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("assert False, 'no'", "AssertionError: no"),
        ("import not_installed_anywhere", "No module named 'not_installed_anywhere'"),
        ("def f(): f()\nf()", "RecursionError"),
        ("x = (", "SyntaxError"),
        ("Good = 5", "int is not a subclass of ptrl.core.Reward"),
        ("", "has no attribute 'Good'"),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_fatal_only_to_who_names_it(
    install: Install, code: str, reason: str
) -> None:
    install("ptrl-plugin-odd", rewards("odd.good = ptrl_plugin_odd:Good"), code)
    assert row("odd.good").status == "ok"  # the list imports nothing, so it cannot know
    with pytest.raises(PluginLoadError) as raised:
        load("rewards", "odd.good")
    assert reason in str(raised.value)
    assert "odd.good" in str(raised.value)
    assert load("observers", "core.jsonl").name == "core.jsonl"


def test_ctrl_c_during_an_import_is_not_swallowed(install: Install) -> None:
    install("ptrl-plugin-odd", rewards("odd.good = ptrl_plugin_odd:Good"), "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load("rewards", "odd.good")


def test_a_missing_module_is_a_row_with_the_fix(install: Install) -> None:
    install("ptrl-plugin-odd", rewards("odd.gone = ptrl_plugin_odd.inner:Good"), code=None)
    found = row("odd.gone")
    assert found.status == "unavailable"
    assert "ptrl_plugin_odd.inner is not there" in found.reason
    assert "pip install --force-reinstall ptrl-plugin-odd" in found.fix
    with pytest.raises(PluginLoadError, match="is not there"):
        load("rewards", "odd.gone")


def test_names_are_unique_over_all_kinds(install: Install) -> None:
    both = rewards("odd.same = ptrl_plugin_odd:Good") + "[ptrl.samplers]\nodd.same = ptrl_plugin_odd:Good\n"
    install("ptrl-plugin-odd", both)
    assert {entry.status for entry in scan()[1] if entry.name == "odd.same"} == {"conflict"}
    with pytest.raises(NameConflictError, match="rewards"):
        load("rewards", "odd.same")


@pytest.mark.parametrize("between", [(), ("odd-between", "zodd")])
def test_two_distributions_that_claim_one_name_are_an_error_that_names_both(
    install: Install, between: tuple[str, ...]
) -> None:
    install("ptrl-plugin-odd", rewards("odd.same = ptrl_plugin_odd:Good"))
    for name in between:
        module = name.replace("-", "_")
        install(name, rewards(f"{module}.other = {module}:Good"), site=f"site-{name}")
    install("odd", rewards("odd.same = odd:Good"), site="last")
    assert "odd (rewards) and ptrl-plugin-odd (rewards)" in row("odd.same").reason
    with pytest.raises(NameConflictError, match="pip uninstall"):
        load("rewards", "odd.same")


def test_a_refused_claim_takes_no_name_from_its_owner(install: Install) -> None:
    install("ptrl-plugin-odd", rewards("odd.good = ptrl_plugin_odd:Good"))
    install("aaa-thief", rewards("odd.good = aaa_thief:Good"), site="thief")
    claims = {entry.package.name: entry.status for entry in scan()[1] if entry.name == "odd.good"}
    assert claims == {"ptrl-plugin-odd": "ok", "aaa-thief": "refused"}
    entry = load("rewards", "odd.good").entry
    assert entry is not None
    assert entry.package.name == "ptrl-plugin-odd"


def test_a_group_that_is_no_kind_is_a_row_that_names_the_kind_meant(install: Install) -> None:
    install("ptrl-plugin-odd", "[ptrl.reward]\nodd.good = ptrl_plugin_odd:Good\n")
    assert row("odd.good").status == "refused"
    assert "there is no kind 'reward'; did you mean 'rewards'" in row("odd.good").reason


def test_the_kinds_that_discovery_knows_are_those_that_there_are() -> None:
    assert {*KINDS, "attacks", "models"} == KIND_NAMES


@pytest.mark.parametrize("kind", ["attacks", "models"])
def test_a_kind_that_core_does_not_load_is_an_error(install: Install, kind: str) -> None:
    install("ptrl-plugin-odd", f"[ptrl.{kind}]\nodd.good = ptrl_plugin_odd:Good\n")
    assert row("odd.good").status == "ok"
    with pytest.raises(PluginLoadError, match=f"core loads no {kind}"):
        load(kind, "odd.good")


@pytest.mark.parametrize("requires", ["ptrl-core>=99", "PTRL_Core >=99,<100", "ptrl-core (>=99)"])
def test_a_plugin_for_a_newer_core_is_a_row_with_the_upgrade(install: Install, requires: str) -> None:
    install("ptrl-plugin-odd", rewards("odd.new = ptrl_plugin_odd:Good"), requires=requires)
    assert row("odd.new").status == "incompatible"
    assert "is installed" in row("odd.new").reason
    assert "pip install --upgrade" in row("odd.new").fix


def test_a_requirement_that_is_not_well_formed_is_a_row(install: Install) -> None:
    install("ptrl-plugin-odd", rewards("odd.new = ptrl_plugin_odd:Good"), requires="ptrl-core >>= 1")
    assert row("odd.new").status == "incompatible"


def test_a_name_outside_the_own_family_is_refused(install: Install) -> None:
    install("ptrl-plugin-odd", rewards("core.jsonl2 = ptrl_plugin_odd:Good", "plain = ptrl_plugin_odd:Good"))
    assert (row("core.jsonl2").status, row("plain").status) == ("refused", "refused")
    assert "odd.jsonl2" in row("core.jsonl2").fix
    with pytest.raises(PluginLoadError, match="family"):
        load("rewards", "core.jsonl2")


def test_a_distribution_installed_twice_is_a_row_that_says_which_is_used(install: Install) -> None:
    install("ptrl-plugin-odd", rewards("odd.good = ptrl_plugin_odd:Good"), version="1.0", site="later")
    install("ptrl-plugin-odd", rewards("odd.good = ptrl_plugin_odd:Good"), version="2.0", site="earlier")
    found = row("odd.good")
    assert found.status == "ok"
    assert "2.0 is used, 1.0 is hidden" in found.reason
    assert "pip uninstall ptrl-plugin-odd" in found.fix
    assert len([entry for entry in scan()[1] if entry.name == "odd.good"]) == 1


@pytest.mark.parametrize(
    "raw",
    [
        b"[ptrl.rewards]\nodd.good\n",
        b"\xff\xfe[ptrl.rewards]",
        b"[ptrl.rewards]\nodd.good = not a module!\n",
        b"[ptrl.",
    ],
)
def test_corrupt_metadata_takes_nothing_else_down(install: Install, raw: bytes) -> None:
    install("ptrl-plugin-odd", "", raw=raw)
    assert row("core.jsonl").status == "ok"
    assert all(entry.status != "ok" for entry in scan()[1] if entry.package.name == "ptrl-plugin-odd")


@pytest.mark.parametrize(("restriction", "listed"), [("", False), ("odd-other", False), ("ptrl_plugin_ODD", True)])
def test_discovery_can_be_restricted(
    install: Install, monkeypatch: pytest.MonkeyPatch, restriction: str, listed: bool
) -> None:
    install("ptrl-plugin-odd", rewards("odd.good = ptrl_plugin_odd:Good"))
    monkeypatch.setenv("PTRL_PLUGINS", restriction)
    names = {entry.name for entry in scan()[1]}
    assert ("odd.good" in names) is listed
    assert "core.jsonl" in names


def test_an_unknown_name_is_an_error_with_the_nearest_names(install: Install) -> None:
    install("ptrl-plugin-odd", rewards("odd.good = ptrl_plugin_odd:Good"))
    with pytest.raises(UnknownNameError, match=r"did you mean 'odd\.good'"):
        load("rewards", "odd.goood")
    with pytest.raises(UnknownNameError, match="pip install ptrl-plugin-nowhere"):
        load("rewards", "nowhere.reward")
    with pytest.raises(UnknownNameError, match="is one of rewards, not of samplers"):
        load("samplers", "odd.good")


def test_a_config_may_not_declare_what_the_config_file_reserves(install: Install) -> None:
    code = GOOD.replace("    def score", "    class Config(Reward.Config):\n        weight: float = 1\n    def score")
    install("ptrl-plugin-odd", rewards("odd.good = ptrl_plugin_odd:Good"), code)
    with pytest.raises(PluginLoadError, match="'weight', which the config reserves"):
        load("rewards", "odd.good")


def test_a_config_that_is_no_pydantic_model_is_an_error_with_the_way_out(install: Install) -> None:
    code = GOOD.replace("    def score", "    class Config:\n        weight = 1\n    def score")
    install("ptrl-plugin-odd", rewards("odd.good = ptrl_plugin_odd:Good"), code)
    with pytest.raises(PluginLoadError, match=r"write class Config\(Reward\.Config\)"):
        load("rewards", "odd.good")


def test_odd_metadata_is_shown_and_takes_nothing_down(install: Install) -> None:
    folder = install("ptrl-plugin-odd", rewards("odd.good = ptrl_plugin_odd:Good"))
    (folder / "ptrl_plugin_odd-1.0.dist-info/METADATA").write_bytes(b"Name: ptrl-plugin-odd\nSummary: \xff\xe9\n\n\x00")
    (folder / "broken-1.0.dist-info").mkdir()
    (folder / "nameless.dist-info").mkdir()
    forget()
    assert row("odd.good").package.version == "unknown"
    assert row("core.jsonl").status == "ok"


def test_stevedores_disk_cache_is_not_read(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    from stevedore import _cache

    def fail(*_: object) -> object:
        raise AssertionError("the disk cache was read")

    monkeypatch.setattr(_cache, "get_group_all", fail)
    install("ptrl-plugin-odd", rewards("odd.good = ptrl_plugin_odd:Good"))
    assert load("rewards", "odd.good").entry is not None


@pytest.mark.parametrize(
    ("distribution", "family"),
    [("ptrl-core", "core"), ("ptrl-plugin-reasoning-gym", "reasoning_gym"), ("My.Rewards", "my_rewards")],
)
def test_a_family_is_read_off_the_distributions_name(distribution: str, family: str) -> None:
    assert family_of(distribution) == family
