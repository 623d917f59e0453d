//! Clients and assistants that know nothing of us, over the official SDKs.

use libtest_mimic::Trial;

pub(crate) fn trials() -> Vec<Trial> {
    Vec::new()
}
