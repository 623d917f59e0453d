//! agent-air: tool results with a display, and batches of calls.
