#!/usr/bin/env python3
"""An assistant in Python: drives `toolbridge assistant`, which must be on the path.

python3 examples/assistant.py --room home     # server and key as for every verb, from the environment or by flags
"""
import json
import subprocess
import sys

command = ["toolbridge", "assistant", *sys.argv[1:]]
bridge = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")


def ask(**line):
    print(json.dumps(line), file=bridge.stdin, flush=True)


ask(type="call", id="words", tool="count_words", arguments={"text": "one two three"}, timeoutMs=10_000)
for line in map(json.loads, bridge.stdout):
    if line["type"] == "hello":
        assert (line["protocol"], line["version"]) == ("toolbridge-assistant", 1), line
    elif line["type"] == "progress":
        print("…", line.get("message", line["status"]))
    elif line["type"] == "result":
        print(line["result"]["value"] if line["ok"] else line["error"]["message"])
        ask(type="close")
sys.exit(bridge.wait())
