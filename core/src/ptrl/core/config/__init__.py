"""From a config file to a plan."""

from ptrl.core.config.reading import read_settings, read_table
from ptrl.core.config.resolving import load_plan, resolve_plan
from ptrl.core.config.schema import build_schema

__all__ = ["build_schema", "load_plan", "read_settings", "read_table", "resolve_plan"]
