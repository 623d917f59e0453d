"""An app that registers methods with LiveKit's SDK, and knows nothing of toolbridge.

    LIVEKIT_URL=ws://… LIVEKIT_TOKEN=… rpc_methods.py

Prints {"event": "ready"} when it is in the room, and {"event": "ran", "method": …} for each run. It stays until its standard
input ends. Methods: echo returns its payload, slow does so after 3 s; text returns text that is not JSON; large returns JSON of
the size that its payload names as {"bytes": N}; fail raises an error with data, crash one of another kind; hang never returns;
"lamp/on: all" returns its payload, too; rotate sets the key {"key", "index"}, or ratchets the one at {"index"}, after its answer.

With E2EE_KEY in the environment its data is encrypted end to end with that shared key.
"""

import asyncio
import json
import os
import threading

from livekit import rtc

from room_options import options


def say(event, **more):
    print(json.dumps({"event": event, **more}), flush=True)


async def main():
    over, loop = asyncio.Event(), asyncio.get_running_loop()

    def watch_stdin():
        while os.read(0, 4096):
            pass
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=watch_stdin, daemon=True).start()
    room = rtc.Room()
    await room.connect(os.environ["LIVEKIT_URL"], os.environ["LIVEKIT_TOKEN"], options())

    def method(answer):
        async def run(data):
            say("ran", method=answer.__name__)
            return await answer(data.payload)

        room.local_participant.register_rpc_method(answer.__name__, run)

    @method
    async def echo(payload):
        return payload

    @method
    async def slow(payload):
        await asyncio.sleep(3)
        return payload

    @method
    async def text(payload):
        return "at home"

    @method
    async def large(payload):
        return json.dumps({"text": "x" * (json.loads(payload)["bytes"] - 11)}, separators=(",", ":"))

    @method
    async def fail(payload):
        raise rtc.RpcError(101, "the lamp is broken", json.dumps({"left": 2}))

    @method
    async def crash(payload):
        raise ValueError("a secret of the app")

    @method
    async def hang(payload):
        await asyncio.sleep(600)

    @method
    async def rotate(payload):
        # After the answer, which still has the key before.
        asyncio.get_running_loop().call_later(0.3, change_key, json.loads(payload))
        return "{}"

    def change_key(to):
        provider = room.e2ee_manager.key_provider
        if "key" in to:
            provider.set_shared_key(to["key"].encode(), to["index"])
        else:
            provider.ratchet_shared_key(to["index"])
        say("rotated")

    async def other_name(payload):
        return payload

    other_name.__name__ = "lamp/on: all"
    method(other_name)

    say("ready")
    await over.wait()
    await room.disconnect()


asyncio.run(main())
# Not by the interpreter's own end: the SDK's threads may still call into it then, and abort the process.
os._exit(0)
