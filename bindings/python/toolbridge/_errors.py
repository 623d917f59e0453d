"""The errors of calls and of tools."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ._vocabulary import CALL_ERRORS, CallError, Closed


class ToolError(Exception):
    """The failure of a tool, with a code and a text for the caller. Raise it in a tool: its text is sent.

    The text of any other exception stays in this process; the caller gets ``execution_error``.
    """

    def __init__(self, message: str, *, code: str = "execution_error", partial: object = None) -> None:
        super().__init__(message)
        #: Such as ``out_of_range``: at most 64 letters, digits and ``_ . -``. Not ``timeout``, ``cancelled`` or ``lost``, which
        #: say what became of the call itself.
        self.code = _checked_code(code)
        #: A partial result, which JSON can hold.
        self.partial = partial


#: The codes that say what became of a call: a tool's own would hide its text.
_OF_CALLS = ("timeout", "cancelled", "lost")


def _checked_code(code: object) -> str:
    if not isinstance(code, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", code):
        text = "it must be a text of 1 to 64 letters, digits and _ . -, such as 'not_found'"
        raise TypeError(f"the code of a ToolError is {code!r}; {text}")
    if code in _OF_CALLS:
        text = f"says what became of the call itself; use another one, such as 'printer_{code}'"
        raise ValueError(f"the code of a ToolError cannot be {code!r}, which {text}")
    return str(code)


class Invalid(Exception):
    """Arguments that do not match their schema. The text is for the caller."""


def call_error(error: Mapping[str, Any]) -> CallError:
    """Returns the error of a call that the core describes."""
    return CALL_ERRORS.get(error["kind"], CallError)(error)


def closed_error(message: str, may_have_run: bool) -> Closed:
    """Returns the error of a call for which there is no session."""
    return Closed({"kind": "closed", "code": "closed", "message": message, "mayHaveRun": may_have_run})


class JoinError(ConnectionError):
    """A room was not joined. The message says why, and what to do."""


class NotReady(Exception):
    """A client did not become ready."""

    def __init__(self, client: str, message: str) -> None:
        super().__init__(message)
        self.client = client
