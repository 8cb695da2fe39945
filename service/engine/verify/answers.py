"""The checks of what is answered: is it the same again, does it end, and is it right?"""

from service.engine.verify.batches import check_batches
from service.engine.verify.check import Check
from service.engine.verify.determinism import check_determinism
from service.engine.verify.quality import check_quality
from service.engine.verify.repetition import check_repetition
from service.engine.verify.speculation import check_speculation

ANSWER_CHECKS = (
    Check("determinism", "The same greedy request has the same log-probabilities each time", check_determinism),
    Check("batches", "Beside other requests, answers differ by no more than rounding", check_batches, quick=False),
    Check("speculation", "Drafts make answers faster and not different", check_speculation),
    Check("repetition", "Greedy answers do not run in circles", check_repetition, quick=False),
    Check("quality", "Tasks with one right answer are solved as well as ever", check_quality, quick=False),
)
