"""The live form of a config, in two halves that exchange plain data: worker and coordinator."""

from ptrl.core.session.coordinator import Coordinator
from ptrl.core.session.session import Session
from ptrl.core.session.worker import Worker

__all__ = ["Coordinator", "Session", "Worker"]
