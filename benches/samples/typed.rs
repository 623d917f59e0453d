//! The same two frames as serde types, for the other crates.

use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Envelope<T> {
    pub(crate) stanza_id: i32,
    pub(crate) conversation_id: String,
    pub(crate) r#type: u16,
    pub(crate) meta: Nothing,
    pub(crate) body: T,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Nothing {}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Request {
    pub(crate) id: String,
    pub(crate) tool_name: String,
    pub(crate) parameters: Find,
    pub(crate) execution: String,
    pub(crate) timeout_ms: i32,
    pub(crate) conversation_id: String,
    pub(crate) message_id: String,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Find {
    pub(crate) name: String,
    pub(crate) limit: u32,
    pub(crate) fuzzy: bool,
    pub(crate) fields: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Answer {
    pub(crate) id: String,
    pub(crate) success: bool,
    pub(crate) result: Records,
    pub(crate) request_id: String,
    pub(crate) conversation_id: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Records {
    pub(crate) results: Vec<Record>,
    pub(crate) total_results: u32,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) city: String,
    pub(crate) rating: f64,
    pub(crate) open: bool,
    pub(crate) visits: u64,
    pub(crate) geo: Geo,
    pub(crate) delta: i64,
    pub(crate) tags: Vec<String>,
    pub(crate) note: String,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Geo {
    pub(crate) lat: f64,
    pub(crate) lon: f64,
}
