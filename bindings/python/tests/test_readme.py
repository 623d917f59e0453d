"""The examples of the page are right: mypy checks them, and those of a client and an assistant run."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from memory import FakeRoom, Memory, in_loop
from toolbridge import ToolFailed

README = Path(__file__).parent.parent / "README.md"

#: What an example takes from its surroundings, by a text in it.
SURROUNDINGS = {
    "async def ask_the_phone": "",
    "async def entrypoint": "",
    "async def reply": "from toolbridge import Assistant",
    "async def set_lamp": "photos: set[str]\nasync def show_dialog(text: str) -> bool: return True",
    "AccessToken": "api: Any\nkey: str\nsecret: str",
}

IMPORTS = """from __future__ import annotations
import asyncio
from typing import Annotated, Any
from livekit import rtc
"""


def example(text: str) -> str:
    (found,) = [code for code in examples() if text in code]
    return found


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_examples_have_the_right_types(tmp_path: Path) -> None:
    assert len(examples()) == len(SURROUNDINGS)
    for at, (text, surroundings) in enumerate(SURROUNDINGS.items()):
        (tmp_path / f"example{at}.py").write_text(f"{IMPORTS}{surroundings}\n{example(text)}")
    # livekit-agents is in another environment; what it decorates is Any here.
    missing = ["--ignore-missing-imports", "--allow-untyped-decorators"]
    command = [sys.executable, "-m", "mypy", "--strict", *missing, "--cache-dir", str(tmp_path / "cache"), str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@in_loop
async def test_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    memory = Memory()
    phone, agent = FakeRoom(memory, "phone", "client"), FakeRoom(memory, "agent", "assistant", kind=4)

    async def show_dialog(text: str) -> bool:
        return text.startswith('agent wants to run "delete_photo"')

    names: dict[str, Any] = {"photos": {"a.jpg"}, "show_dialog": show_dialog, "phone": phone}
    app = example("async def set_lamp").replace("rtc.Room()", "phone")
    exec(IMPORTS + "from toolbridge import ConsentRequest\n" + app, names)
    exec(IMPORTS + example("async def ask_the_phone"), names)
    exec(IMPORTS + "from toolbridge import Assistant\n" + example("async def reply"), names)
    await names["run"]("ws://…", "…")
    await agent.connect()
    await names["ask_the_phone"](agent)
    printed = capsys.readouterr().out
    assert "phone: set_lamp, Switches the lamp on or off." in printed
    assert "unknown_tool unknown_tool" in printed and "the assistant is agent" in printed
    assistant = names["Assistant"](agent)
    await assistant.ready("phone")
    assert await assistant.call("set_lamp", {"on": True}) == {"on": True, "brightness": 100}
    assert await assistant.call("delete_photo", {"name": "a.jpg"}) == {"value": "gone"}
    with pytest.raises(ToolFailed, match="there is no photo a.jpg") as failed:
        await assistant.call("delete_photo", {"name": "a.jpg"})
    assert failed.value.code == "not_found"
    interrupted = asyncio.Event()
    assistant.on("settled", lambda event: interrupted.set())
    await names["reply"](assistant, interrupted)
    assert "'brightness': 100" in capsys.readouterr().out
    await assistant.aclose()
