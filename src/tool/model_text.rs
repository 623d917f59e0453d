//! Writes failures as a model reads them: what happened, and what to do, without names of participants.

use super::{CallError, ErrorCode, LossCause, ToolError};

/// Added if the tool may have run.
const MAY_HAVE_RUN: &str = "It may have run: find out before you call it again.";

/// Returns the text for a model of a call with the names of its error.
#[cfg(feature = "vocabulary")]
pub(crate) fn of_call(error: &CallError) -> String {
    let tool = match error {
        CallError::UnknownTool { tool, .. }
        | CallError::Ambiguous { tool, .. }
        | CallError::NotBound { tool, .. } => tool,
        _ => "",
    };
    text(tool, error)
}

/// Returns the text for a model, which knows the tool by this name.
pub(crate) fn text(tool: &str, error: &CallError) -> String {
    let nothing_ran = |what: &str| format!("{what} Nothing ran.");
    match error {
        CallError::Tool(failure) => of_tool(failure),
        CallError::UnknownTool { .. } => unknown(tool),
        CallError::Ambiguous { .. } => nothing_ran(&format!(
            "several apps offer {tool:?} by now. Load the list of tools again, and use one of its names."
        )),
        CallError::NotBound { .. } => nothing_ran(&format!(
            "the app that offers {tool:?} obeys another assistant. Use another tool, or tell the user."
        )),
        CallError::NotDelivered { .. } => nothing_ran("the app could not be reached. Call again later."),
        CallError::NotAllowed => {
            nothing_ran("there is no permission to send calls to apps. Use another tool, or tell the user.")
        }
        CallError::Timeout { limit } => {
            format!("no result came within {} s. {MAY_HAVE_RUN}", limit.as_secs_f32())
        }
        CallError::Lost { why: LossCause::Silent(_), .. } => {
            format!("the app does not answer any more. {MAY_HAVE_RUN}")
        }
        CallError::Lost { .. } => format!("the app disconnected before it answered. {MAY_HAVE_RUN}"),
        CallError::Cancelled => format!("the call was cancelled. {MAY_HAVE_RUN}"),
        CallError::Unawaited | CallError::Detached | CallError::TurnOver => format!("{error}."),
        CallError::TooManyEqual { limit, .. } => nothing_ran(&format!(
            "it was called with the same arguments {limit} times in this turn. Use an earlier result, or tell the user."
        )),
        CallError::Limit { .. } => nothing_ran(&format!("{error}. Tell the user.")),
        CallError::TooLarge { size, limit } => {
            nothing_ran(&format!("the arguments have {size} bytes; the limit is {limit}. Send less."))
        }
        CallError::TooManyOpen { open } => {
            nothing_ran(&format!("{open} calls of this app are open already. Call again when one has ended."))
        }
        CallError::Busy { .. } => nothing_ran("the app is busy. Call again in a few seconds."),
        CallError::Arguments(error) => nothing_ran(&format!("the arguments cannot be sent: {error}.")),
        CallError::NotInRoom(_) => {
            nothing_ran("there is no connection to the apps. Call again later, or tell the user.")
        }
        CallError::Closed(_) => format!("the connection to the apps ended. {MAY_HAVE_RUN}"),
    }
}

/// Returns the text for a tool that is not offered.
pub(crate) fn unknown(tool: &str) -> String {
    // The name comes from the other system, and may be long.
    let shown: String = tool.chars().take(64).collect();
    format!("no app offers a tool named {shown:?} now. Use another tool of the list. Nothing ran.")
}

fn then_again(what: &str) -> String {
    format!("{what}. Call again later, or tell the user.")
}

/// Returns the message of the tool, and what to do if the message cannot say it.
pub(crate) fn of_tool(error: &ToolError) -> String {
    let message = match error.message().trim() {
        "" => return then_again(ToolError::LOCAL_MESSAGE),
        message @ (ToolError::LOCAL_MESSAGE | ToolError::PANIC_MESSAGE) => return then_again(message),
        message => message,
    };
    let hints = [
        (ErrorCode::INVALID_PARAMETERS, "Correct the arguments, and call again."),
        (ErrorCode::BUSY, "Call again in a few seconds."),
        (ErrorCode::TIMEOUT, MAY_HAVE_RUN),
        (ErrorCode::CANCELLED, MAY_HAVE_RUN),
        (ErrorCode::PERMISSION_DENIED, "Do not call again unless the user asks for it."),
    ];
    let code = error.code();
    let Some((_, hint)) = hints.iter().find(|(known, _)| *known == code) else { return message.to_owned() };
    let end = if message.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{message}{end} {hint}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::CloseReason;

    #[test]
    fn rap_r29_failure_names_no_participant() {
        for error in [
            CallError::Ambiguous { tool: "ring".into(), owners: vec!["planted".into()] },
            CallError::NotBound {
                tool: "ring".into(),
                clients: vec!["planted".into()],
                assistants: ["planted".into()].into(),
            },
            CallError::Lost { owner: "planted".into(), why: LossCause::Restarted },
            CallError::Busy { owner: "planted".into(), limit: Some("planted".to_owned()) },
            CallError::Closed(CloseReason::Closed),
            CallError::NotInRoom(CloseReason::Closed),
        ] {
            let text = text("ring", &error);
            assert!(!text.contains("planted"), "{text}");
        }
    }

    #[test]
    fn model_is_not_told_to_repeat_what_cannot_succeed() {
        let text = |error: &CallError| text("ring", error);
        assert_eq!(text(&CallError::TurnOver), "the turn is over; nothing ran.");
        assert!(text(&CallError::Detached).ends_with("its result is delivered later."));
        let repeated = text(&CallError::TooManyEqual { tool: "ring".into(), limit: 5 });
        assert_eq!(
            repeated,
            "it was called with the same arguments 5 times in this turn. Use an earlier result, or tell the user. Nothing ran."
        );
        let (asked, maximum) = (Duration::ZERO, Duration::from_secs(600));
        let range = text(&CallError::Limit { asked, maximum });
        assert_eq!(
            range,
            "the timeout of 0 ms is outside the range from 1 ms to 600000 ms. Tell the user. Nothing ran."
        );
    }

    #[test]
    fn rap_r10_failure_says_what_to_do() {
        let of =
            |code: ErrorCode, message: &str| text("ring", &CallError::Tool(ToolError::new(code, message)));
        assert_eq!(
            of(ErrorCode::INVALID_PARAMETERS, "at /volume: not a number"),
            "at /volume: not a number. Correct the arguments, and call again."
        );
        assert_eq!(of(ErrorCode::EXECUTION_ERROR, "no paper; refill it"), "no paper; refill it");
        let internal = ToolError::internal(std::io::Error::other("/home/me/planted"));
        assert_eq!(
            text("ring", &CallError::Tool(internal)),
            "the tool failed. Call again later, or tell the user."
        );
        let timeout = text("ring", &CallError::Timeout { limit: Duration::from_millis(1_500) });
        assert_eq!(timeout, format!("no result came within 1.5 s. {MAY_HAVE_RUN}"));
        assert!(unknown(&"a".repeat(1_000)).len() < 200);
    }
}
