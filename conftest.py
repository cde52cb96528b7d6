"""What every test shares: no time limit per hypothesis example, since machines differ and may be busy."""

from hypothesis import settings

settings.register_profile("ptrl", deadline=None)
settings.load_profile("ptrl")
