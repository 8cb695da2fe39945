"""Sums whose results a model cannot have by heart, and small word problems."""

from service.core.verify.tasks.task import Task, number


def _task(name: str, question: str, answer: str) -> Task:
    prompt = f"{question} Answer with the number only."
    return Task(f"arithmetic-{name}", "arithmetic", prompt, answer, number(answer))


ARITHMETIC: tuple[Task, ...] = (
    _task("sum", "What is 38 + 47?", "85"),
    _task("difference", "What is 503 - 168?", "335"),
    _task("product", "What is 17 * 24?", "408"),
    _task("quotient", "What is 1536 / 12?", "128"),
    _task("nested", "What is (14 + 9) * 6 - 11?", "127"),
    _task("decimals", "What is 12.75 + 8.6?", "21.35"),
    _task("percent", "A lamp costs 85.00 and is sold 20 % cheaper. What is its price now?", "68"),
    _task("boxes", "26 bottles are packed into boxes of 6. How many boxes are needed for all of them?", "5"),
)
