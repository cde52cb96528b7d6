"""First-party observers."""
