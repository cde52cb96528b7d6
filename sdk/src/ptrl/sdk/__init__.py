"""For authors of `ptrl-plugin-*` packages: conformance kit, audit and scaffold grow here."""

__all__: list[str] = []
