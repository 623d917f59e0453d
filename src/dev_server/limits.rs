//! Limits names, metadata and attributes, and refuses requests.

use std::collections::HashMap;

/// The maximum length of a room name or identity, in bytes, as in livekit-server.
pub(super) const MAX_NAME: usize = 256;
/// The maximum size of metadata, in bytes. In livekit-server it is 512 KiB.
pub(super) const MAX_METADATA: usize = 64_000;
/// The maximum total size of attribute names and values, in bytes, as in livekit-server. That checks each change on its own,
/// so small changes can add up to more; here the total is checked.
pub(super) const MAX_ATTRIBUTES: usize = 64 * 1024;

pub(super) const METADATA_TOO_LARGE: &str = "metadata size exceeds limits: at most 64000 bytes";

/// Why a request is refused: the HTTP status and the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal(pub(super) u16, pub(super) &'static str);

type Attributes = HashMap<String, String>;

/// Returns whether a change, and the result of applying it, is within the limits.
pub(super) fn allow(name: &str, metadata: &str, changes: &Attributes, before: &Attributes) -> bool {
    let kept = before.iter().filter(|(name, _)| !changes.contains_key(*name));
    let set = changes.iter().filter(|(_, value)| !value.is_empty());
    name.len() <= MAX_NAME
        && is_metadata_allowed(metadata)
        && size(changes.iter()) <= MAX_ATTRIBUTES
        && size(kept.chain(set)) <= MAX_ATTRIBUTES
}

/// Returns whether metadata of a participant or of a room is within the limit.
pub(super) fn is_metadata_allowed(metadata: &str) -> bool {
    metadata.len() <= MAX_METADATA
}

/// Checks the metadata and attributes of a join.
pub(super) fn check(metadata: &str, attributes: &Attributes) -> Result<(), Refusal> {
    if !is_metadata_allowed(metadata) {
        return Err(Refusal(400, METADATA_TOO_LARGE));
    }
    if size(attributes.iter()) > MAX_ATTRIBUTES {
        return Err(Refusal(400, "attribute size exceeds limits"));
    }
    Ok(())
}

fn size<'a>(attributes: impl Iterator<Item = (&'a String, &'a String)>) -> usize {
    attributes.map(|(name, value)| name.len() + value.len()).sum()
}
