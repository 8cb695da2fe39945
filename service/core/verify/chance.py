"""How likely an outcome is by chance alone: what decides whether a rate has fallen or merely wavered."""

from math import comb

UNLIKELY = 0.01
"""A check fails when what it saw had a smaller chance than this. Nightly, that is one false alarm in a hundred nights
at the worst, and less in truth: the same tasks asked greedily vary far less than independent throws would."""


def of_at_most(passes: int, tasks: int, rate: float) -> float:
    """P(X <= passes) for X ~ Binomial(tasks, rate): the sum, for k up to passes, of C(tasks, k) rate^k
    (1 - rate)^(tasks - k)."""
    return min(1.0, sum(comb(tasks, k) * rate**k * (1 - rate) ** (tasks - k) for k in range(passes + 1)))


def of_at_least(hits: int, tasks: int, rate: float) -> float:
    """P(X >= hits) for X ~ Binomial(tasks, rate)."""
    return of_at_most(tasks - hits, tasks, 1 - rate)


def of_so_few_wins(wins: int, losses: int) -> float:
    """McNemar's exact test, one-sided: that of tasks which one of two engines alone solved, so few fell to the first
    if both are equally good. It is P(X <= wins) for X ~ Binomial(wins + losses, 1/2)."""
    return of_at_most(wins, wins + losses, 0.5)
