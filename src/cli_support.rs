//! Gives the command line what is no part of the API. It may change in any version.

use std::net::IpAddr;

use serde_json::Value as Json;
use url::Host;

use crate::{adapter::jsonrpc::head::Head, net::host, replay};

/// "1 call", "2 calls".
pub fn counted(count: u64, word: &str) -> String {
    replay::counted(count, word)
}

/// Returns the id and the type of a message that cannot be read as a whole, of which the start and the end were kept.
pub fn id_and_type(start: &[u8], end: &[u8]) -> (Option<Json>, Option<String>) {
    let head = Head::of_ends(start, end);
    (head.id(), head.text("type"))
}

/// Returns whether a host is this machine with every resolver.
pub fn is_certainly_local(host: &Host<&str>) -> bool {
    host::is_certainly_local(host)
}

/// Returns whether this is a loopback address.
pub fn is_own(ip: IpAddr) -> bool {
    host::is_own(ip)
}
