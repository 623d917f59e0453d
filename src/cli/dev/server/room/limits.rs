//! How much somebody may say of itself.

use std::collections::HashMap;

use super::{MAX_NAME, Refusal};

/// The largest metadata, in bytes: LiveKit's own limit is 512 KiB, which nobody needs here.
pub(super) const MAX_METADATA: usize = 64_000;
/// The largest attributes in all, names and values, in bytes: LiveKit's own limit. It looks at each change alone, and
/// so many small ones may grow beyond it there; here they may not.
pub(super) const MAX_ATTRIBUTES: usize = 64 * 1024;

type Attributes = HashMap<String, String>;

/// Whether a change is small enough, and what there was is with it.
pub(super) fn allow(name: &str, metadata: &str, changes: &Attributes, before: &Attributes) -> bool {
    let kept = before.iter().filter(|(name, _)| !changes.contains_key(*name));
    let set = changes.iter().filter(|(_, value)| !value.is_empty());
    name.len() <= MAX_NAME
        && metadata.len() <= MAX_METADATA
        && size(changes.iter()) <= MAX_ATTRIBUTES
        && size(kept.chain(set)) <= MAX_ATTRIBUTES
}

/// Whether somebody may join who says this of itself.
pub(in crate::cli::dev::server) fn check(metadata: &str, attributes: &Attributes) -> Result<(), Refusal> {
    if metadata.len() > MAX_METADATA {
        return Err(Refusal(400, "metadata size exceeds limits"));
    }
    if size(attributes.iter()) > MAX_ATTRIBUTES {
        return Err(Refusal(400, "attribute size exceeds limits"));
    }
    Ok(())
}

fn size<'a>(attributes: impl Iterator<Item = (&'a String, &'a String)>) -> usize {
    attributes.map(|(name, value)| name.len() + value.len()).sum()
}
