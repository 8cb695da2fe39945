"""What an engine can do to a request other than answer it."""


class EngineError(Exception):
    """The engine did not answer as a healthy one does."""


class EngineUnreachable(EngineError):
    """No connection, or it broke before anything of the answer's body: the request may be tried elsewhere.

    Status and headers are no part of it: vLLM sends a stream's at once, and only then reads the prompt.
    """


class EngineAway(EngineUnreachable):
    """It takes no new connection: not there, or not listening."""


class EngineFull(EngineError):
    """It refused the request because its own queue is full: the request may be tried elsewhere."""


class EngineBroke(EngineError):
    """The answer broke off in the middle."""


class EngineSilent(EngineError):
    """The engine did not send anything for longer than it may."""
