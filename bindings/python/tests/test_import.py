"""What ``import toolbridge`` loads: each program pays for it at its start."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from typing import Any

import pytest
from toolbridge import OfferedTool, Progress, ToolDescription
from toolbridge._json import to_json_text

#: The modules of the standard library that the package needs besides those of ``asyncio``. LiveKit's SDK needs them, too.
STANDARD = {"__future__", "_json", "_typing", "json", "json.decoder", "json.encoder", "json.scanner", "typing"}

#: The modules of the package that are loaded when they are used.
LATER = {"_driver", "_join", "_schema", "_send_queue", "_types", "agents"}

PROGRAM = """
import asyncio, sys
before = set(sys.modules)
from toolbridge import *
print(*sorted(set(sys.modules) - before))
"""


def loaded() -> set[str]:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    return set(ran.stdout.split())


def test_import_loads_no_other_modules_than_these() -> None:
    others = {name for name in loaded() if name.partition(".")[0] != "toolbridge"}
    assert others <= STANDARD, "each takes time at the start of every program: import it where it is used, or add it here"


def test_import_loads_rarely_used_modules_later() -> None:
    found = loaded()
    assert "toolbridge._assistant" in found
    assert found.isdisjoint(f"toolbridge.{name}" for name in LATER)


LAMP = ToolDescription("set_lamp", "Switches the lamp", {"type": "object"}, read_only=False)


def test_records_have_fields_as_dataclasses_have_them() -> None:
    assert Progress("pending") == Progress("pending", None, None) != Progress("pending", "soon")
    assert {Progress("pending"): 1}[Progress("pending")] == 1
    assert repr(Progress("pending", "soon")) == "Progress(status='pending', message='soon', content=None)"
    assert LAMP.replace(title="Lamp") == ToolDescription("set_lamp", "Switches the lamp", {"type": "object"}, "Lamp", read_only=False)
    assert copy.copy(LAMP) == LAMP and pickle.loads(pickle.dumps(LAMP)) == LAMP
    with pytest.raises(AttributeError):
        LAMP.title = "Lamp"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del LAMP.title


@pytest.mark.parametrize(
    "values, named, problem",
    [
        (["phone"], {}, "needs the field tool"),
        (["phone", LAMP, 1], {}, "has 2 fields; 3 values"),
        (["phone", LAMP], {"owner": "tv"}, "no field owner, or it is given twice"),
        (["phone", LAMP], {"own": "tv"}, "no field own,"),
    ],
)
def test_record_with_wrong_fields_is_refused(values: list[object], named: dict[str, object], problem: str) -> None:
    make: Any = OfferedTool
    with pytest.raises(TypeError, match=problem):
        make(*values, **named)


def test_records_are_json_objects() -> None:
    written = json.loads(to_json_text([OfferedTool("phone", LAMP)], "the result"))
    assert written[0]["owner"] == "phone" and written[0]["tool"]["name"] == "set_lamp"
