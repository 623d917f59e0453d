"""Calls between two sessions of the core, without a room: what the core itself costs. As ``bindings/js/bench/core-calls.mjs``."""

import json
import time
from collections import deque
from typing import Any

from toolbridge._core import Session

#: The time between two calls, in milliseconds of the sessions' time: a client takes 50 calls a second.
INTERVAL = 25
CALLS = 5_000


class Room:
    def __init__(self) -> None:
        self.at = 0.0
        self.ends: dict[str, Any] = {}
        self.packets: deque[tuple[str, dict[str, Any], bytes]] = deque()
        self.jobs: deque[tuple[str, int]] = deque()
        self.settled = 0
        self.frames = 0

    def pass_(self, name: str, given: dict[str, Any], data: bytes | None = None) -> None:
        session = self.ends[name]
        session.handle(json.dumps({"atMs": self.at, **given}), data)
        while (text := session.next_output()) is not None:
            output = json.loads(text)
            if output["type"] == "transmit":
                self.packets.append((name, output, session.take_bytes()))
            elif output["type"] == "execute":
                self.jobs.append((name, output["key"]))
            elif output["type"] == "result":
                assert "error" not in output, text
                self.settled += 1

    def work(self) -> None:
        while True:
            if self.jobs:
                name, key = self.jobs.popleft()
                self.pass_(name, {"type": "progress", "key": key})
                self.pass_(name, {"type": "settle", "key": key, "value": {"ok": True}})
            elif self.packets:
                sender, output, data = self.packets.popleft()
                source = {"identity": sender, "sid": f"PA_{sender}"}
                for to in output["to"]:
                    self.frames += 1
                    lane, topic = output["lane"], output["topic"]
                    self.pass_(to, {"type": "packet", "from": source, "lane": lane, "topic": topic}, data)
            else:
                return

    def elapse(self, ms: float) -> None:
        """Lets time pass, from one deadline to the next."""
        end = self.at + ms
        while True:
            at, name = min((session.next_deadline() or end + 1, name) for name, session in self.ends.items())
            if at > end:
                break
            self.at = at
            self.pass_(name, {"type": "timeout"})
            self.work()
        self.at = end


def who(identity: str, role: str) -> dict[str, Any]:
    return {
        "identity": identity,
        "sid": f"PA_{identity}",
        "kind": "agent" if role == "assistant" else "standard",
        "attributes": {"toolbridge.role": role},
        "canUpdateMetadata": False,
    }


def main() -> None:
    room = Room()
    for identity, role, seed in (("agent", "assistant", "2"), ("phone", "client", "1")):
        create = {"type": "create", "atMs": 0, "role": role, "local": who(identity, role), "seed": seed * 64}
        room.ends[identity] = Session.create(json.dumps({**create, "config": {"lossy": True, "streams": True}}))
        room.pass_(identity, {"type": "listen", "events": ["closed"]})
    room.pass_("phone", {"type": "offer", "tools": [{"name": "echo", "description": "x"}]})
    room.pass_("agent", {"type": "participant_joined", "participant": who("phone", "client")})
    room.pass_("phone", {"type": "participant_joined", "participant": who("agent", "assistant")})
    for _ in range(40):
        room.elapse(100)
    data = "abcdefghijk" * 20
    each = []
    room.frames = 0
    for call in range(CALLS):
        room.elapse(INTERVAL)
        begun = time.perf_counter()
        room.pass_("agent", {"type": "call", "id": call, "tool": "echo", "to": "phone", "arguments": {"data": data}})
        room.work()
        each.append(time.perf_counter() - begun)
        assert room.settled == call + 1, "a call has no result"
    each.sort()
    mean = sum(each) / CALLS
    print(f"Python: {each[CALLS // 2] * 1e6:.1f} µs a call (mean {mean * 1e6:.1f} µs), {room.frames / CALLS:.1f} frames a call")


main()
