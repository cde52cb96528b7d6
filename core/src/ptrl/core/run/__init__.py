"""A run: its folder, its lock, and the loop around a session."""
