"""The live form of a config, in two halves that exchange plain data: worker and coordinator."""

from ptrl.core.session.coordinator import Coordinator, Selection
from ptrl.core.session.session import Session
from ptrl.core.session.worker import Worker

__all__ = ["Coordinator", "Selection", "Session", "Worker"]
