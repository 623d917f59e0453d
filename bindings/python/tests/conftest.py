import sys
from pathlib import Path

# The room in memory and the ends of real rooms are used in all folders.
for folder in (".", "rooms"):
    sys.path.insert(0, str(Path(__file__).parent / folder))
