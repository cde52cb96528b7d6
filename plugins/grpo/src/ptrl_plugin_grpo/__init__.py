"""The embedded optimizer: group-advantage policy gradients and supervised warm-up."""
