"""The demo's domains, worked examples and tiny model."""
