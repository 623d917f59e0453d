"""Imports the ends of real rooms, which are also for LiveKit's SDK. A participant that joins by itself does not need it: without it, they
get a module in its place, which the package does not see.
"""

import importlib.util
import sys
import types

if importlib.util.find_spec("livekit") is None:
    sys.modules["livekit"] = types.ModuleType("livekit")
    sys.modules["livekit"].rtc = None  # type: ignore[attr-defined]
    import ends  # noqa: F401

    del sys.modules["livekit"]
