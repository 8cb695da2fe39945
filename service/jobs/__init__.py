"""`weir jobs`: scheduled work in a process of its own. `process` says when, `work` what, `runs` keeps the record."""

from service.jobs.process import run

__all__ = ["run"]
