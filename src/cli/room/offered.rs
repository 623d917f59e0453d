//! Reads `--allow` and `--deny`: which tools of the room are offered to another system.

use clap::Args;

#[derive(Debug, Args)]
pub(in crate::cli) struct OfferOptions {
    /// Offer only these tools (repeatable): NAME, OWNER.NAME, the name that the other side sees, or the beginning of one and `*`
    #[arg(long, value_name = "PATTERN")]
    allow: Vec<String>,

    /// Do not offer these tools (repeatable); wins over --allow
    #[arg(long, value_name = "PATTERN")]
    deny: Vec<String>,
}

impl OfferOptions {
    /// Returns whether any option was given.
    pub(in crate::cli) fn is_given(&self) -> bool {
        !self.allow.is_empty() || !self.deny.is_empty()
    }

    /// Sets the patterns of a server.
    pub(in crate::cli) fn set<S>(
        &self,
        server: S,
        allow: impl Fn(S, &str) -> S,
        deny: impl Fn(S, &str) -> S,
    ) -> S {
        let server = self.allow.iter().fold(server, |server, pattern| allow(server, pattern));
        self.deny.iter().fold(server, |server, pattern| deny(server, pattern))
    }
}
