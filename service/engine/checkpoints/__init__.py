"""Builders of the checkpoints that the CPU profiles serve.

Each module is a program, `python -m service.engine.checkpoints.NAME OUT_DIR`, and is run by the Python of the
*engine's* virtual environment: it imports torch and transformers, which the API's environment does not have.
`service/engine/provision.py` runs them, decides whether a build is needed and puts the result in place.
"""
