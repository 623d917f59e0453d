//! Bridges standard input and output to an MCP server at an address: see [`attach`].
//!
//! Each side is a [`Peer`]. A [`Relay`] carries what one side sends to the other: its requests get ids of this side, and
//! their answers come back under its own.

mod relay;

use std::{sync::Arc, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinSet,
    time::timeout,
};

use self::relay::{MAX_OPEN, Relay};
use super::source::{address::Address, http::Http};
use crate::adapter::jsonrpc::{
    inbox::Inbox,
    peer::Peer,
    reader::Reader,
    rules::{MCP, MCP_HOST},
};

/// How long open requests may take after the host has closed its input, as over standard input and output.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// How long the last messages may take to be written.
const LAST_WRITE: Duration = Duration::from_secs(2);

/// Carries one MCP host's standard input and output to an MCP server at an address, such as
/// [`McpListener::url`](super::McpListener::url).
///
/// It is for hosts that start their servers as child processes, beside an assistant that runs already: no second
/// assistant joins the room. The address must be `https`, or `http` of this machine. Redirects are not followed.
pub fn attach(url: impl Into<String>) -> Attach {
    Attach { url: url.into(), bearer: None }
}

/// Carries messages between a host and a server: see [`attach`].
#[must_use = "nothing is carried before it has a connection"]
pub struct Attach {
    url: String,
    bearer: Option<String>,
}

impl Attach {
    /// Sets the bearer token of the server. Default: none.
    pub fn bearer_token(mut self, token: impl Into<String>) -> Self {
        self.bearer = Some(token.into());
        self
    }

    /// Carries messages, one per line, until the host closes its input or its output, or the server is gone. Nothing but
    /// messages is written: a request that the server answers with anything else gets an error that says what it was.
    /// Answers whose stream breaks are resumed. Requests that are open when the host closes its input have 5 s to end.
    ///
    /// A line has at most 4 MiB, and at most 64 requests are open. Further ones are refused.
    ///
    /// # Errors
    /// [`AttachError::Address`] if the address cannot be used, [`AttachError::Gone`] if the server cannot be reached, or
    /// has ended the session. The host gets an error for each open request first.
    ///
    /// # Cancel safety
    /// Dropping the future ends the connection and cancels its calls.
    pub async fn over(
        self,
        read: impl AsyncRead + Send + Unpin + 'static,
        write: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<(), AttachError> {
        let address = Address::read(&self.url).map_err(|error| AttachError::Address(error.to_string()))?;
        let client = address.client(self.bearer.as_deref()).map_err(AttachError::Address)?;
        let ((host, to_host), (server, to_server)) =
            (Peer::new(MAX_OPEN, &MCP_HOST), Peer::new(MAX_OPEN, &MCP));
        let requests = Relay::to_server(Arc::clone(&host), Arc::clone(&server));
        let questions = Relay::to_host(&requests);
        let inbox = Inbox::new("an MCP server".into(), Arc::default());
        let http = Http::new(
            client,
            Arc::clone(&server),
            inbox,
            questions,
            Arc::clone(requests.agreed()),
            Arc::default(),
        );
        let mut reader = Reader::new(read, Arc::clone(&host), "an MCP host".into(), Arc::default());
        // Aborted with this future.
        let (mut serving, mut writing, mut reading) = (JoinSet::new(), JoinSet::new(), JoinSet::new());
        serving.spawn(http.run(to_server));
        writing.spawn(to_host.write(write));
        let from_host = Arc::clone(&requests);
        reading.spawn(async move {
            while let Ok(Some(message)) = reader.next().await {
                from_host.carry(message).await;
            }
        });
        tokio::select! {
            _ = server.ended() => requests.answered().await, // with errors
            _ = reading.join_next() => { let _ = timeout(LAST_ANSWERS, requests.answered()).await; }
            _ = writing.join_next() => {} // the host reads no more
        }
        reading.shutdown().await;
        let gone = server.failure();
        host.close();
        let _ = timeout(LAST_WRITE, writing.join_next()).await;
        server.close();
        serving.join_next().await;
        gone.map_or(Ok(()), |reason| Err(AttachError::Gone(reason.to_string())))
    }
}

/// Without the token, and without the path of the address, which may be secret.
impl std::fmt::Debug for Attach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attach").finish_non_exhaustive()
    }
}

/// Why an [`Attach`] ended with an error. No text has the token, or more of the address than its host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The address, or the token, cannot be used.
    #[error("{0}")]
    Address(String),
    /// The server cannot be reached, or has ended the session.
    #[error("the MCP server is gone: {0}")]
    Gone(String),
}
