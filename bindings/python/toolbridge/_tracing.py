"""Connects calls with the spans of OpenTelemetry, by the trace context in a request's ``meta``.

Its API is not imported here: a program that has not imported it has no spans.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

#: W3C's names, which OpenTelemetry's propagators use.
_PARENT = "traceparent"

#: The names of the same two ids for readers that know only these.
_TRACE_ID, _SPAN_ID = "messaging.trace_id", "messaging.span_id"


def with_span(meta: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Adds the position of the current span, if there is one and the author has not set any."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or (meta is not None and (_PARENT in meta or _TRACE_ID in meta)):
        return meta
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return meta
    fields: dict[str, Any] = {}
    _propagator().inject(fields)
    fields[_TRACE_ID] = trace.format_trace_id(span.trace_id)
    fields[_SPAN_ID] = trace.format_span_id(span.span_id)
    return {**(meta or {}), **fields}


def enter_span(meta: Mapping[str, Any]) -> None:
    """Makes the caller's span the current one of this task, so that the spans of the tool are its children."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return
    fields = {name: value for name, value in meta.items() if isinstance(value, str)}
    if _PARENT not in fields and _TRACE_ID in fields and _SPAN_ID in fields:
        # A sender that writes ids without flags records its trace.
        fields[_PARENT] = f"00-{fields[_TRACE_ID]}-{fields[_SPAN_ID]}-01"
    if _PARENT not in fields:
        return
    from opentelemetry import context

    # The task ends with the call, and its context with it.
    context.attach(_propagator().extract(fields))


def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()
