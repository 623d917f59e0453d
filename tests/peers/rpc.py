"""LiveKit's own RPC, for comparison: one end that asks all the time, or one that answers.

    LIVEKIT_URL=ws://… TOKENS=TOKEN,TOKEN… rpc.py ask TO TIMEOUT_S     asks each 100 ms in every room
    LIVEKIT_URL=ws://… TOKENS=TOKEN,TOKEN… rpc.py answer

Prints {"event": "ready"} when all are in their rooms; then {"event": "ran", "room": …, "number": …} for each question
that is answered, and {"event": "asked", "room": …, "number": …, "began": …, "ended": …, "error": …} for each that has
an outcome, with the system's time in seconds. Ends when its standard input does.
"""

import asyncio
import json
import os
import sys
import threading
import time

from livekit import rtc

PERIOD = 0.1


def say(event, **more):
    print(json.dumps({"event": event, **more}), flush=True)


async def ask(room, to, limit):
    for number in range(10**9):
        asyncio.create_task(question(room, to, limit, number))
        await asyncio.sleep(PERIOD)


async def question(room, to, limit, number):
    began, error = time.time(), None
    try:
        await room.local_participant.perform_rpc(
            destination_identity=to, method="echo", payload=str(number), response_timeout=limit
        )
    except Exception as failed:  # whatever it is, it is an outcome
        error = f"{type(failed).__name__} {getattr(failed, 'code', '')}"
    say("asked", room=room.name, number=number, began=began, ended=time.time(), error=error)


async def main():
    over = asyncio.Event()
    loop = asyncio.get_running_loop()

    def watch_stdin():
        while os.read(0, 4096):
            pass
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=watch_stdin, daemon=True).start()
    rooms = []
    for token in os.environ["TOKENS"].split(","):
        room = rtc.Room()
        await room.connect(os.environ["LIVEKIT_URL"], token)
        rooms.append(room)
        if sys.argv[1] == "answer":

            async def echo(data, name=room.name):
                say("ran", room=name, number=int(data.payload))
                return data.payload

            room.local_participant.register_rpc_method("echo", echo)
    say("ready")
    asking = []
    if sys.argv[1] == "ask":
        asking = [asyncio.create_task(ask(room, sys.argv[2], float(sys.argv[3]))) for room in rooms]
    await over.wait()
    for task in asking:
        task.cancel()


asyncio.run(main())
# Not by the interpreter's own end: the SDK's threads may still call into it then, and abort the process.
os._exit(0)
