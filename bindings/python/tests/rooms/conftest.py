import sys
from pathlib import Path

# The room in memory has what these tests use, too.
sys.path.insert(0, str(Path(__file__).parent.parent))
