//! The two frames that measurements use: a request of about 220 bytes and a result of about 10 KB.

#![expect(clippy::unwrap_used, reason = "what is written here is valid")]

use bytes::Bytes;
use serde_json::{Value, json};
use toolbridge::{
    CallId,
    frame::{Frame, Message, Meta, ToolUseRequest, ToolUseResult},
    tools::Execution,
};

/// Sets public fields of a value. `#[non_exhaustive]` types have no struct literals outside their crate.
macro_rules! with {
    ($base:expr, $($field:ident = $value:expr),+ $(,)?) => {{
        let mut it = $base;
        $(it.$field = $value;)+
        it
    }};
}

pub(crate) fn request() -> Bytes {
    let request = Message::ToolUseRequest(with!(
        ToolUseRequest::new(
            CallId::try_from("V1StGXR8_Z5jdHi6B-myT").unwrap(),
            "find_contact",
            json!({"name": "Ada Lovelace", "limit": 3, "fuzzy": true, "fields": ["mobile", "mail"]}).into(),
            Ok(Execution::Client)
        ),
        timeout_ms = Some(5000),
        message_id = Some("msg_8Zq1xLr0".into())
    ));
    Frame::write(-3, "conv_7Hq2", &Meta::new(), &request).unwrap()
}

pub(crate) fn result() -> Bytes {
    let result = Message::ToolUseResult(with!(
        ToolUseResult::new(CallId::try_from("V1StGXR8_Z5jdHi6B-myT").unwrap(), true),
        result = Some(records().into())
    ));
    Frame::write(4, "conv_7Hq2", &Meta::new(), &result).unwrap()
}

/// Fifty records of 28 values each: nested maps, integers of all widths, some text that is not ASCII.
pub(crate) fn records() -> Value {
    let record = |n: u64| {
        json!({
            "id": n * 7919, "name": format!("Trattoria numero {n} da Luigi"), "delta": -(n as i64) * 40,
            "city": if n.is_multiple_of(5) { "Città di Castello" } else { "Roma" }, "open": n.is_multiple_of(2),
            "rating": 3.5 + (n % 3) as f64 * 0.25, "visits": n * n * 104_729,
            "geo": {"lat": 41.9 + n as f64 / 1000.0, "lon": 12.5}, "tags": ["vino", "日本"],
            "note": format!("Open until {} o'clock, closed on Mondays; ask for a table", 20 + n % 4),
        })
    };
    json!({"results": (0..50).map(record).collect::<Vec<_>>(), "totalResults": 50})
}
