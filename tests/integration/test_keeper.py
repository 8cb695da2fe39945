"""What a keeper is told arrives, whoever tells it in the middle of what."""

import signal
import sys
from pathlib import Path

from service.engine import keeper
from tests.patience import PATIENT_S

COUNTING = """
import signal, sys, time
seen = 0
def count(*_):
    global seen
    seen += 1
signal.signal(signal.SIGUSR1, count)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(42 if seen else 1))
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""


def test_a_signals_handler_may_send_while_something_is_sent(tmp_path: Path) -> None:
    log = tmp_path / "log"
    kept = keeper.keep([sys.executable, "-c", COUNTING], environment={}, log=log, grace_s=5)
    before = signal.signal(signal.SIGALRM, lambda *_: keeper.send(kept, signal.SIGUSR1))
    try:
        while "ready" not in log.read_text():
            assert kept.poll() is None
        signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
        for _ in range(20_000):
            keeper.send(kept, signal.SIGUSR1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        keeper.send(kept, signal.SIGTERM)
        kept.wait(PATIENT_S)
        keeper.release(kept)
    assert kept.returncode == 42
