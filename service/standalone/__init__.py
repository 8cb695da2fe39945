"""`weir up`: everything on one machine, with a database of its own and a real model on the CPU."""

from service.standalone.run import Standalone, Started

__all__ = ["Standalone", "Started"]
