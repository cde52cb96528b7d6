"""Finding components. `entries` lists from metadata alone; `loading` imports just what a config names."""

from ptrl.core.registry.entries import Entry, Package, family_of, forget, normalize, scan

__all__ = ["Entry", "Package", "family_of", "forget", "normalize", "scan"]
