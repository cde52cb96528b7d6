"""Tasks from files."""
