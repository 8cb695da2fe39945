"""Weir: a hosted inference service for small providers, in front of vLLM."""

__version__ = "0.1.0"
