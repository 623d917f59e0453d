#!/usr/bin/env python3
"""Tests the wheel of the command line: `check.py WHEEL`.

The wheel is installed in a virtual environment, whose programs and the system's are all that is found. There the demo and the server for
development run, and an assistant in Python calls a tool of a client.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: The largest wheel, in bytes.
LARGEST = 12_000_000

#: The longest time of a program, in seconds.
LIMIT = 120


def main(wheel: str) -> None:
    size = os.path.getsize(wheel)
    assert size <= LARGEST or "--any-size" in sys.argv, f"{wheel} has {size} bytes; the limit is {LARGEST}"
    with tempfile.TemporaryDirectory() as folder:
        install(wheel, folder)
        # A home without ~/.cargo.
        env = {"PATH": f"{folder}/bin:/usr/bin:/bin", "HOME": folder, "LANG": "C.UTF-8"}
        for compiler in ("cargo", "rustc"):
            assert shutil.which(compiler, path=env["PATH"]) is None, f"{compiler} is in the path of the test"
        run(env, "toolbridge", "--version")
        assert "9 outcomes" in run(env, "toolbridge", "demo")
        with background(env, "toolbridge", "dev", "--port", "0") as server:
            env.update(re.findall(r"(LIVEKIT_\w+)=(\S+)", until(server, "LIVEKIT_API_SECRET")))
            tools = str(ROOT / "examples" / "tools.toml")
            with background(env, "toolbridge", "client", "--room", "home", "--identity", "desk", "--tools", tools) as client:
                until(client, "joined as desk")
                call = json.dumps({"type": "call", "id": 1, "tool": "get_uptime"})
                assert '"value":' in run(env, "toolbridge", "assistant", "--room", "home", input=f"{call}\n")
                # It finds the program beside its own Python, too.
                example = str(ROOT / "examples" / "assistant.py")
                bare = {**env, "PATH": "/usr/bin:/bin"}
                assert run(bare, f"{folder}/bin/python", example, "--room", "home").split()[-1] == "3"
    print(f"{os.path.basename(wheel)}: {size / 1e6:.2f} MB, works without Rust")


def install(wheel: str, folder: str) -> None:
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [f"{folder}/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", wheel]
    subprocess.run(pip, check=True)


def run(env: dict, *command: str, input: str = "") -> str:
    """Returns what a program prints. It must succeed."""
    path = shutil.which(command[0], path=env["PATH"]) or command[0]
    ran = subprocess.run([path, *command[1:]], env=env, input=input, capture_output=True, text=True, timeout=LIMIT)
    assert ran.returncode == 0, f"{' '.join(command)} failed: {ran.stdout}{ran.stderr}"
    return ran.stdout + ran.stderr


class background:
    """A program that runs until the end of the block."""

    def __init__(self, env: dict, *command: str) -> None:
        path = shutil.which(command[0], path=env["PATH"]) or command[0]
        merged = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        self.child = subprocess.Popen([path, *command[1:]], env=env, text=True, **merged)

    def __enter__(self) -> subprocess.Popen:
        return self.child

    def __exit__(self, *_: object) -> None:
        self.child.terminate()
        self.child.communicate(timeout=LIMIT)


def until(child: subprocess.Popen, text: str) -> str:
    """Returns what a program prints up to a line with this text."""
    printed = ""
    for line in child.stdout:
        printed += line
        if text in line:
            return printed
    raise AssertionError(f"no {text!r} in {printed!r}")


if __name__ == "__main__":
    main(sys.argv[1])
