"""Prints the time and the memory of programs that read one recording: the median of RUNS (5) runs, in turn."""

import os
import statistics
import sys
import time

RUNS = int(os.environ.get("RUNS", 5))

COUNT = """
import sys
from mcap.reader import make_reader
with open(sys.argv[1], "rb") as file:
    print(sum(len(message.data) for _, _, message in make_reader(file).iter_messages()))
"""


def run(command):
    """Returns the seconds and the peak memory in MB."""
    began = time.perf_counter()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.execv(command[0], command)
    _, status, usage = os.wait4(child, 0)
    if status != 0:
        sys.exit(f"it failed: {command}")
    return time.perf_counter() - began, usage.ru_maxrss / 1024


def main(toolbridge, tools, file):
    verbs = ["info", "cat", "calls", "check"]
    rows = [(f"`toolbridge {verb}`", [toolbridge, verb, file]) for verb in verbs]
    rows.append(("`mcap` of Python, each message", [f"{tools}/python", "-c", COUNT, file]))
    rows.append(("`pymcap-cli info`", [f"{tools}/python", f"{tools}/pymcap-cli", "info", file]))
    taken = {name: [] for name, _ in rows}
    for _ in range(RUNS):
        for name, command in rows:
            taken[name].append(run(command))
    print(f"\n| an hour, {os.path.getsize(file) / 1e6:.1f} MB | s | MB of memory |\n| --- | --- | --- |")
    for name, _ in rows:
        times, memory = zip(*taken[name])
        print(f"| {name} | {statistics.median(times):.2f} | {statistics.median(memory):.0f} |")


main(*sys.argv[1:])
