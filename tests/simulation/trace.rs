//! The output of a run with `--trace`.

use toolbridge::{
    frame::{Frame, Message},
    transport::Peer,
};

/// Prints a line with the virtual time in ms, if the run is traced.
macro_rules! trace {
    ($world:expr, $($arguments:tt)*) => {
        if $world.tracing {
            println!("{:>9.3} {}", $world.room.now as f64 / 1_000.0, format_args!($($arguments)*));
        }
    };
}

/// Formats a frame in one line, without its values.
pub(crate) fn show(frame: &Frame) -> String {
    let stanza = frame.stanza_id().unwrap_or(0);
    let what = match frame.message() {
        Ok(Message::ToolUseRequest(it)) => {
            format!("request {:?} of {} {:?} {:?} ms", it.id, it.tool_name, it.execution, it.timeout_ms)
        }
        Ok(Message::ToolUseResult(it)) => {
            format!(
                "result {:?} {}",
                it.id,
                it.error_code.map_or_else(|| "ok".to_owned(), |code| code.to_string())
            )
        }
        Ok(Message::Acknowledgement(it)) => format!(
            "ack of {:?} {:?} {:?} {:?}",
            it.acknowledged_stanza_id, it.acknowledged_message_id, it.success, it.notes
        ),
        Ok(Message::ControlStop(it)) if frame.meta_bool("bridge.bye") => {
            format!("goodbye {:?}", it.stop_type)
        }
        Ok(Message::ControlStop(it)) => format!("stop {:?}", it.target_id),
        Ok(Message::Configuration(_)) => format!(
            "configuration {} heard={}",
            frame.meta_str("bridge.instance").map_or("-", |text| text.get(..4).unwrap_or("-")),
            frame.meta_bool("bridge.heard")
        ),
        Ok(Message::ToolsRegister(it)) => format!("registration of {}", it.tools.len()),
        Ok(Message::ToolsRegisterAck(it)) => format!("registered {} {:?}", it.tool_count, it.error),
        Ok(Message::Error(it)) => format!("error {} {} {:?}", it.code, it.message, it.originating_id),
        Ok(Message::ToolProgress(it)) => format!("progress {:?} {:?}", it.id, it.status),
        Ok(other) => format!("{}", other.kind()),
        Err(error) => format!("malformed: {error}"),
    };
    format!("#{stanza} {what}")
}

pub(crate) fn peer(peer: &Peer) -> String {
    if peer.identity().as_str().is_empty() {
        "unknown".to_owned()
    } else {
        format!("{}/{}", peer.identity(), peer.sid())
    }
}
