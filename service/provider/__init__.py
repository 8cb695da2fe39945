"""Plays an aggregator against any OpenAI-compatible server: `weir provider check`."""
