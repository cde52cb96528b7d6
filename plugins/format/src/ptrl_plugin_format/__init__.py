"""Format rewards and gates."""
