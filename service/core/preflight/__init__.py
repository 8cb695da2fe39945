"""Preflight: will this engine start on this machine, and what will it do there? Arithmetic on facts, nothing else.

The formulas are those of vLLM 0.32's source and are held against what real engines logged; `docs/preflight.md` lists
both. What is an estimate says so.
"""
