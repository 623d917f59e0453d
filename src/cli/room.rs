//! Holds the verbs that join a room as a client, an assistant or an observer, and what they share.

pub(super) mod assistant;
pub(super) mod call;
pub(super) mod client;
pub(super) mod connect;
pub(super) mod connection_state;
pub(super) mod consent;
pub(super) mod demo;
pub(super) mod doctor;
pub(super) mod encryption;
pub(super) mod grant;
pub(super) mod offered;
pub(super) mod ping;
pub(super) mod prompts;
pub(super) mod record;
pub(super) mod record_option;
pub(super) mod sources;
pub(super) mod token;
pub(super) mod token_role;
pub(super) mod tools;
pub(super) mod unreadable;
pub(super) mod watch;
