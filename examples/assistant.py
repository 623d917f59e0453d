#!/usr/bin/env python3
"""An assistant in Python: drives `toolbridge assistant`, which must be on the path, or installed for this Python (`toolbridge-cli`).

python3 examples/assistant.py --room home --identity helper    # server and key as for every verb, from the environment or by flags

The identity lets a restarted process take the place of a killed one. Without it, clients wait for the old one first.
"""
import asyncio
import itertools
import json
import os
import shutil
import signal
import sys

TOOL = "count_words"

# A virtual environment need not be activated.
PATH = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
PROGRAM = shutil.which("toolbridge", path=PATH) or "toolbridge"


class Bridge:
    """`toolbridge assistant` as a child process: calls go in as JSON lines, results and events come out."""

    def __init__(self, process):
        self.process = process
        self.ids = itertools.count(1)
        self.open = {}  # the calls without a result
        self.ready = {}  # tool name -> Event: a client offers it
        self.reader = asyncio.create_task(self.read())

    @classmethod
    async def start(cls, *arguments):
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            PROGRAM, "assistant", *arguments, stdin=pipe, stdout=pipe, limit=24 * 2**20
        )
        return cls(process)

    def say(self, **line):
        self.process.stdin.write(json.dumps(line).encode() + b"\n")

    def offered(self, tool):
        return self.ready.setdefault(tool, asyncio.Event())

    async def read(self):
        """Hands on each line until the output ends, which ends what still waits, too."""
        reason = "toolbridge ended"
        async for text in self.process.stdout:
            line = json.loads(text)
            match line["type"]:
                case "hello":
                    assert (line["protocol"], line["version"]) == ("toolbridge-assistant", 2), line
                case "progress":
                    print("…", line.get("message", line["status"]))
                case "result" if (call := self.open.pop(line["id"], None)) and not call.done():
                    call.set_result(line)
                case "event" if line["event"] == "ready":
                    for tool in line["tools"]:
                        self.offered(tool).set()
                case "event" if line["event"] == "join_failed":
                    reason = line["reason"]
                case "event" if line["event"] == "closed":
                    reason = line["reason"]["message"]
        raise ConnectionError(reason)

    async def until(self, awaited):
        """Waits for it, unless the bridge ends first."""
        task = asyncio.ensure_future(awaited)
        try:
            await asyncio.wait([task, self.reader], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self.reader.result()  # raises why it ended
            return task.result()
        finally:
            task.cancel()

    async def call(self, tool, timeout_ms=10_000, **arguments):
        name = next(self.ids)
        self.open[name] = asyncio.get_running_loop().create_future()
        self.say(type="call", id=name, tool=tool, arguments=arguments, timeoutMs=timeout_ms)
        try:
            line = await self.until(self.open[name])
        except asyncio.CancelledError:
            self.say(type="cancel", id=name)
            raise
        if "error" in line:
            raise RuntimeError(line["error"]["message"])
        return line["value"]

    async def close(self):
        """Says goodbye to the room."""
        self.process.stdin.close()
        await asyncio.wait([self.reader])
        self.reader.exception()  # the output has ended, as it should
        return await self.process.wait()


async def main():
    # Without this Ctrl-C would end Python before the goodbye.
    me = asyncio.current_task()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, me.cancel)
    bridge = await Bridge.start(*sys.argv[1:])
    try:
        await bridge.until(asyncio.wait_for(bridge.offered(TOOL).wait(), timeout=10))
        print((await bridge.call(TOOL, text="one two three"))["value"])
    except (asyncio.TimeoutError, ConnectionError, RuntimeError) as error:
        print(str(error) or f"no participant offers {TOOL}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        return 130
    finally:
        await bridge.close()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
