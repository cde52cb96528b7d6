"""Samplers and filters."""
