# mypy: ignore-errors
"""The worker of the page (bindings/python/README.md) with a scripted model in place of its own: `page_worker.py COMMAND`.

When the client `phone` is ready, the model asks for a call of `set_lamp`. The tool `report` of the client gets what the model reads of
it. The scripted model is that of `tests/peers/agents/forward.py`.
"""

import asyncio
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT / "tests/peers/agents"))

import forward
import livekit.agents
import toolbridge

(EXAMPLE,) = [
    code
    for code in re.findall(r"```python\n(.*?)```", (ROOT / "bindings/python/README.md").read_text(), re.DOTALL)
    if "cli.run_app(" in code
]


class Assistant(toolbridge.Assistant):
    """The assistant, which the session below finds."""

    made: "Assistant"

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        Assistant.made = self


class Scripted(livekit.agents.AgentSession):
    def __init__(self, **_):
        super().__init__(llm=forward.Script(), vad=None, turn_handling={"turn_detection": "manual"})

    async def start(self, agent, **more):
        await super().start(agent, **more)
        self._turn = asyncio.create_task(self._call())

    async def _call(self):
        await Assistant.made.ready("phone", timeout=60)
        result = await self.run(user_input=json.dumps([{"tool": "set_lamp", "arguments": {"on": True}}]))
        outputs = [[it.item.name, it.item.is_error, it.item.output] for it in result.events if it.type == "function_call_output"]
        await Assistant.made.call("report", {"outputs": outputs}, to="phone")


# Also in the process of the job, which imports this module.
livekit.agents.AgentSession = Scripted
toolbridge.Assistant = Assistant
exec(compile(EXAMPLE, "README.md", "exec"))
