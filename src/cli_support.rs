//! Gives the command line what is no part of the API. It may change in any version.

use crate::{
    adapter::jsonrpc::head::Head,
    livekit::{AccessKey, Check, Diagnosis},
    replay,
};

/// "1 call", "2 calls".
pub fn counted(count: u64, word: &str) -> String {
    replay::counted(count, word)
}

/// Returns the JSON of the id, and the type, of a message that cannot be read as a whole, of which the start and the end were kept.
pub fn id_and_type(start: &[u8], end: &[u8]) -> (Option<String>, Option<String>) {
    let head = Head::of_ends(start, end);
    (head.id().map(|id| id.as_json().to_owned()), head.text("type"))
}

/// Returns whether an API key is publicly known, and signs no token for a server at this URL.
pub fn is_public_key(key: &AccessKey, url: &str) -> bool {
    key.is_public_at(url)
}

/// Returns the URL of the server that a diagnosis checks.
pub fn server_url(diagnosis: &Diagnosis) -> &str {
    diagnosis.url()
}

/// Returns the name of a check in a text for people.
pub fn title(check: &Check) -> &'static str {
    check.title
}
