"""Lets a voice assistant call tools in the apps of its LiveKit room."""

from ._assistant import Assistant, Late, ModelTool, OfferedTool, Progress, ToolDescription, Turn
from ._client import Client
from ._e2ee import E2eeKeys
from ._errors import JoinError, NotReady, ToolError
from ._questions import ConsentRequest
from ._tool import Tool, ToolContext, tool
from ._vocabulary import (
    Ambiguous,
    Busy,
    CallError,
    CallTimeout,
    Cancelled,
    Closed,
    Detached,
    InvalidArguments,
    InvalidLimit,
    Lost,
    NotAllowed,
    NotBound,
    NotDelivered,
    ToolFailed,
    TooLarge,
    TooManyEqual,
    TooManyOpen,
    TurnOver,
    UnknownTool,
)

__all__ = [
    "Ambiguous",
    "Assistant",
    "Busy",
    "CallError",
    "CallTimeout",
    "Cancelled",
    "Client",
    "Closed",
    "ConsentRequest",
    "Detached",
    "E2eeKeys",
    "InvalidArguments",
    "InvalidLimit",
    "JoinError",
    "Late",
    "Lost",
    "ModelTool",
    "NotAllowed",
    "NotBound",
    "NotDelivered",
    "NotReady",
    "OfferedTool",
    "Progress",
    "Tool",
    "ToolContext",
    "ToolDescription",
    "ToolError",
    "ToolFailed",
    "TooLarge",
    "TooManyEqual",
    "TooManyOpen",
    "Turn",
    "TurnOver",
    "UnknownTool",
    "tool",
]
