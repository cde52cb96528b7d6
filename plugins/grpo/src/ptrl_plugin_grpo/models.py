"""Finding and loading the policy's weights and tokenizer."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from ptrl.core import OptimizerError
from ptrl.core.settings import ModelSection
from ptrl_plugin_grpo.tokenizer import ChatTokenizer

PACKAGE = "package:"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def locate(path: str) -> str:
    """Returns the folder of a `package:MODULE/FOLDER` model; any other path or hub id as it is.

    Raises:
        OptimizerError: When the package or its folder is not installed.
    """
    if not path.startswith(PACKAGE):
        return path
    module, _, folder = path.removeprefix(PACKAGE).partition("/")
    spec = importlib.util.find_spec(module) if module.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise OptimizerError(f"model.path: no installed package is called {module!r}; install the one that ships it")
    found = Path(next(iter(spec.submodule_search_locations))) / folder
    if not (found / "config.json").is_file():
        raise OptimizerError(f"model.path: the package {module} has no model in {folder!r}")
    return str(found)


def load_tokenizer(section: ModelSection) -> ChatTokenizer:
    """Loads the tokenizer with its chat template.

    Raises:
        OptimizerError: When there is none, or it has no chat template.
    """
    where = locate(section.path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, revision=section.revision)
    except Exception as error:  # whatever a broken file makes the libraries raise
        raise OptimizerError(f"model.path: no tokenizer can be loaded from {section.path!r}: {error}") from error
    if section.chat_template is not None:
        try:
            tokenizer.chat_template = Path(section.chat_template).read_text(encoding="utf-8")
        except OSError as error:
            raise OptimizerError(f"model.chat_template: {section.chat_template}: {error.strerror}") from error
    if not tokenizer.chat_template:
        raise OptimizerError(
            f"the tokenizer of {section.path!r} has no chat template; name a file in model.chat_template"
        )
    return ChatTokenizer(tokenizer)


def load_model(section: ModelSection, seed: int, device: torch.device) -> PreTrainedModel:
    """Loads the weights, or draws new ones from `seed` where the config says `initialize = "random"`.

    Raises:
        OptimizerError: When the model cannot be loaded.
    """
    where = locate(section.path)
    dtype = DTYPES.get(section.dtype)
    try:
        with _quiet():
            model = _load(section, where, dtype, seed)
    except OptimizerError:
        raise
    except Exception as error:  # whatever a broken file makes the libraries raise
        raise OptimizerError(f"model.path: no model can be loaded from {section.path!r}: {error}") from error
    found: PreTrainedModel = model.to(device)  # type: ignore[arg-type]
    return found


def _load(section: ModelSection, where: str, dtype: torch.dtype | None, seed: int) -> PreTrainedModel:
    found: PreTrainedModel
    if section.initialize == "random":
        config = AutoConfig.from_pretrained(where, revision=section.revision)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            found = AutoModelForCausalLM.from_config(config, dtype=dtype or torch.float32)
    else:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            where, revision=section.revision, dtype=dtype or "auto", output_loading_info=True
        )
        found, report = loaded
        missing = sorted(report["missing_keys"])
        if missing:
            raise OptimizerError(
                f"model.path: {section.path!r} lacks {len(missing)} weights of its config, such as {missing[0]};"
                ' restore them, or set model.initialize = "random" to draw all anew'
            )
    return found


def save_model(model: PreTrainedModel, tokenizer: ChatTokenizer, folder: Path) -> None:
    """Writes weights and tokenizer as `from_pretrained` and vLLM load them."""
    with _quiet():
        model.save_pretrained(folder)
    tokenizer.save(folder)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps transformers' own progress bars out of the run's display."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def default_device() -> torch.device:
    """Returns the GPU where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
