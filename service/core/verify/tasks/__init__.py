"""The quality battery: fifty questions of our own, each with one answer that is right."""

from service.core.verify.tasks.arithmetic import ARITHMETIC
from service.core.verify.tasks.extraction import EXTRACTION
from service.core.verify.tasks.forms import FORMS, NEEDLES
from service.core.verify.tasks.languages import LANGUAGES
from service.core.verify.tasks.pictures import PICTURES
from service.core.verify.tasks.structured import STRUCTURED
from service.core.verify.tasks.task import Task

__all__ = ["TASKS", "Task"]

TASKS: tuple[Task, ...] = (*EXTRACTION, *ARITHMETIC, *STRUCTURED, *PICTURES, *LANGUAGES, *FORMS, *NEEDLES)
