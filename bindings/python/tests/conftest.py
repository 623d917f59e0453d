import os
import sys
from pathlib import Path

import pytest

# The room in memory and the ends of real rooms are used in all folders.
for folder in (".", "rooms"):
    sys.path.insert(0, str(Path(__file__).parent / folder))

_status = 0


def pytest_sessionfinish(exitstatus: int) -> None:
    global _status
    _status = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    # Not by the interpreter's own end: the SDK's threads may still call into it then, and abort the process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_status)
