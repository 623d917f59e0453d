"""Asks the person whether tools may run."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

from ._executor import Failure, Threads, describe, time_in
from ._json import JsonObject

if TYPE_CHECKING:
    from datetime import datetime

    from ._types import AskPerson

class ConsentRequest:
    """What a person is asked."""

    def __init__(
        self, text: str, tool: JsonObject, arguments: JsonObject, caller: str, call: str, deadline: datetime
    ) -> None:
        #: A question for a dialog, with the tool and all arguments. They come from others: show it as text, and let it scroll.
        #: Control and invisible characters are escapes. Calls with arguments above 16 KiB are refused without a question.
        self.text = text
        #: Its ``name``, ``description`` and, if it has one, ``title``.
        self.tool = tool
        self.arguments = arguments
        self.caller = caller
        self.call = call
        #: A missing answer counts as a refusal then.
        self.deadline = deadline

    def __repr__(self) -> str:
        return f"ConsentRequest(text={self.text!r}, caller={self.caller!r}, call={self.call!r})"


class Questions:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        person: AskPerson | None,
        threads: Threads,
        *,
        check: Callable[[str, JsonObject], Failure | None],
        refused: Callable[[int, Failure], object],
        answered: Callable[[int, bool], object],
        left: Callable[[float], float],
        warn: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._person = person
        #: Those of plain functions that ask.
        self._threads = threads
        #: Checks the arguments of a tool before a person is asked.
        self._check = check
        self._refused = refused
        self._answered = answered
        #: How long it is until a time of the core, in milliseconds.
        self._left = left
        self._warn = warn
        self._open: dict[int, asyncio.Task[None]] = {}
        self._context = contextvars.copy_context()

    def ask(self, ask: JsonObject) -> None:
        self._open[ask["key"]] = self._context.copy().run(lambda: self._loop.create_task(self._ask(ask)))

    def withdraw(self, key: int) -> None:
        question = self._open.pop(key, None)
        if question is not None:
            question.cancel()

    def withdraw_all(self) -> None:
        """Withdraws all questions, because the session has ended."""
        questions, self._open = self._open, {}
        for question in questions.values():
            question.cancel()

    async def _ask(self, ask: JsonObject) -> None:
        key = ask["key"]
        refusal = self._check(ask["tool"]["name"], ask["arguments"])
        allowed = refusal is None and await self._answer(ask)
        if self._open.get(key) is not asyncio.current_task():
            return  # withdrawn
        del self._open[key]
        if refusal is not None:
            self._refused(key, refusal)
        else:
            self._answered(key, allowed)

    async def _answer(self, ask: JsonObject) -> bool:
        person = self._person
        if person is None:
            return False
        if "text" not in ask:
            name = ask["tool"]["name"]
            limit = "its arguments are larger than the 16 KiB that a person is shown"
            self._warn(f'a call of "{name}" by {ask["caller"]} is refused: {limit}')
            return False
        try:
            request = self._request(ask)
            if inspect.iscoroutinefunction(person):
                answer = person(request)
            else:
                answer = await self._threads.run(lambda: person(request))
            return (await answer if inspect.isawaitable(answer) else answer) is True
        except Exception as error:
            self._warn(f"the consent function raised {describe(error)}; it counts as a refusal")
            return False

    def _request(self, ask: JsonObject) -> ConsentRequest:
        about = ask["tool"]
        described = {name: about[name] for name in ("name", "description", "title") if name in about}
        deadline = time_in(self._left(ask["untilMs"]) / 1000)
        return ConsentRequest(ask["text"], described, ask["arguments"], ask["caller"], ask["call"], deadline)
