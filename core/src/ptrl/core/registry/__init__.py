"""Finding components: stevedore lists from metadata and imports just what a config names."""

from ptrl.core.registry.entries import Entry, Package, family_of, forget, normalize, scan
from ptrl.core.registry.loading import Loaded, check_class, find, from_function, load, load_command

__all__ = [
    "Entry",
    "Loaded",
    "Package",
    "check_class",
    "family_of",
    "find",
    "forget",
    "from_function",
    "load",
    "load_command",
    "normalize",
    "scan",
]
