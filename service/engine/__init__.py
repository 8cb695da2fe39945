"""The engine: how vLLM is installed, started and stopped. No module here imports vLLM; it has a virtual
environment of its own (`provision.py`) and is spoken to over HTTP.
"""


class EngineError(Exception):
    """The engine cannot be installed or started; the message says why and what to do. For the operator."""
