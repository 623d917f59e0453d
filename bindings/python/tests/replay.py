"""Replays traces: `replay.py FOLDER`, the folder that `scripts/bindings traces` prints. Each line that the core writes must be equal,
byte by byte.
"""

import base64
import json
import sys
from pathlib import Path

from toolbridge._core import Session

INPUT = '{"input":'
SENT = '{"sent":'
START = '{"start":'


def replay(trace: str) -> int:
    """Returns how many lines are equal. Raises AssertionError with the first that differs."""
    session: Session | None = None
    result: str | None = None
    equal = 0

    def output_line() -> str:
        assert session is not None
        output = session.next_output()
        if output is None:
            due = session.next_deadline()
            return f'{{"deadlineMs":{"null" if due is None else written(due)}}}'
        data = session.take_bytes()
        if data is None:
            return f'{{"output":{output}}}'
        return f'{{"output":{output[:-1]},"bytes":"{base64.b64encode(data).decode()}"}}}}'

    def result_of(text: str) -> str | None:
        nonlocal session
        try:
            if session is None:
                session = Session.create(text)
                return None
            text, data = split(text)
            reply = session.handle(text, data)
            return None if reply is None else f'{{"reply":{reply}}}'
        except ValueError as error:
            return f'{{"error":{json.dumps(str(error), ensure_ascii=False)}}}'

    for line in trace.split("\n"):
        if not line:
            continue
        if result is None and line.startswith(INPUT):
            result = result_of(line[len(INPUT) : -1])
            continue
        if result is None and session is not None and line.startswith((SENT, START)):
            [(what, numbers)] = json.loads(line).items()
            may_start = getattr(session, what)(*numbers)
            if what == "start":
                result = f'{{"started":{json.dumps(may_start)}}}'
            continue
        found, result = result or output_line(), None
        assert found == line, f"the trace has {line}\nand the core {found}"
        equal += 1
    if session is not None:
        session.free()
    return equal


def split(text: str) -> tuple[str, bytes | None]:
    """Passes bytes as shells do: beside the text. They are the last field."""
    before, mark, after = text.rpartition(',"bytes":"')
    if not mark or not after.endswith('"}'):
        return text, None
    return before + "}", base64.b64decode(after[:-2])


def written(number: float) -> str:
    """As the core writes times: without trailing zeros."""
    return str(int(number)) if number.is_integer() else repr(number)


def main(folder: str) -> None:
    files = sorted(Path(folder).glob("*.jsonl"))
    lines = 0
    for file in files:
        try:
            lines += replay(file.read_text())
        except AssertionError as error:
            sys.exit(f"{file.name}: {error}")
    if lines == 0:
        sys.exit(f"there are no traces in {folder}")
    print(f"Python {sys.version.split()[0]}: {len(files)} traces, {lines} lines are equal")


if __name__ == "__main__":
    main(sys.argv[1])
