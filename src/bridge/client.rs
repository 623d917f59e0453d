//! A participant that offers tools.

use std::sync::Arc;

use super::{Handle, JoinError, participant_methods, setup::Setup, setup_methods};
use crate::{
    link::{Identity, Role},
    transport::Transport,
};

/// A participant that offers tools, as a handle: clones are the same participant.
///
/// Dropping the last one leaves at once; [`close`](Client::close) waits for what is open.
#[derive(Clone, Debug)]
pub struct Client {
    handle: Arc<Handle>,
}

impl Client {
    /// What a client is made of.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// The assistant that may call our tools, once it is known.
    pub fn assistant(&self) -> Option<Identity> {
        self.handle.0.lock().session.bound().cloned()
    }
}

participant_methods!(Client);

/// What a client is made of: its tools, and the assistant it listens to.
#[derive(Debug, Default)]
#[must_use = "a builder does nothing until it joins"]
pub struct ClientBuilder {
    setup: Setup,
}

impl ClientBuilder {
    /// The assistant whose calls are taken. Default: the only one in the room that may be one.
    ///
    /// Named, it may call as soon as both are in the room; else LiveKit must announce it first, which
    /// takes up to 3 s.
    pub fn assistant(mut self, identity: impl Into<Identity>) -> Self {
        self.setup.config = self.setup.config.assistant(identity);
        self
    }

    /// Joins over a transport of your own.
    ///
    /// # Errors
    /// [`JoinError::Register`] when the tools cannot be offered.
    ///
    /// # Cancel safety
    /// Dropped half-way, nothing has joined.
    pub async fn join_over(self, transport: impl Transport) -> Result<Client, JoinError> {
        Ok(Client { handle: self.setup.join(transport, Role::Client)? })
    }

    /// Joins a LiveKit room: `url` as `wss://…`, with a token for that room.
    ///
    /// # Errors
    /// [`JoinError::Register`] when the tools cannot be offered, else what kept us out and what to do about it.
    ///
    /// # Cancel safety
    /// Dropped half-way, the participant leaves again.
    #[cfg(feature = "room")]
    pub async fn join(self, url: &str, token: &str) -> Result<Client, JoinError> {
        self.setup.check()?;
        let room = self.setup.room.clone().join(url, token).await?;
        self.join_over(room).await
    }
}

setup_methods!(ClientBuilder);
