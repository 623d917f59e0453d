//! Serves an assistant as the agent of an editor: see [`agent`].
//!
//! Source: <https://agentclientprotocol.com/protocol/v1/overview>. Loading of sessions, modes and MCP servers of the editor
//! are not offered.

mod connection;
mod editor;
mod open_turn;
mod prompt;
mod question;
mod session;
mod turn;

pub use editor::Editor;
pub use prompt::{TurnEnd, UserPrompt};
pub use turn::{AgentCall, AgentTurn};

use std::{fmt, future::Future, io, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::{JoinError, JoinSet},
    time::timeout,
};

use self::{connection::Connection, open_turn::Turns, session::Service};
use crate::{Assistant, CloseReason, ToolError};

/// How long the last messages may take to be written when a connection ends.
const LAST_WRITE: Duration = Duration::from_secs(2);

/// Serves an assistant as the agent of an editor. `run` is the author's loop: it gets each prompt of the person, and the
/// turn, in which it calls tools and answers.
///
/// The assistant keeps working as before. A call of a turn is a tool call of the editor, with its progress and its result.
/// [`Editor`] is for the questions of its own tools.
///
/// | what an editor does | what follows |
/// | --- | --- |
/// | it cancels the turn | its calls and questions are cancelled, and the prompt is answered `cancelled`, never with an error |
/// | it sends a second prompt in a session | it is refused until the first one is answered |
/// | it closes its end | its turns are cancelled, and the connection ends |
/// | it reads no more | whatever sends waits, and nothing more is read from it |
/// | it writes something other than messages | it is skipped and counted |
///
/// ```no_run
/// # async fn serve(assistant: toolbridge::Assistant) -> Result<(), Box<dyn std::error::Error>> {
/// use toolbridge::adapter::acp;
///
/// acp::agent(assistant, |prompt, turn| async move {
///     match turn.call("look_up", serde_json::json!({"text": prompt.text()})).title("Looking it up").await {
///         Ok(found) => turn.say(found.to_json().to_string()).await,
///         Err(error) => turn.say(format!("I could not look it up: {error}")).await,
///     }
///     Ok(acp::TurnEnd::EndTurn)
/// })
/// .stdio()
/// .await?;
/// # Ok(())
/// # }
/// ```
pub fn agent<F, Fut>(assistant: Assistant, run: F) -> AcpAgent<F>
where
    F: Fn(UserPrompt, AgentTurn) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<TurnEnd, ToolError>> + Send + 'static,
{
    AcpAgent { assistant, run: Arc::new(run), editor: Editor::new(), title: None }
}

/// Serves an assistant as the agent of an editor: see [`agent`].
#[must_use = "an agent does nothing until it has a connection"]
pub struct AcpAgent<F> {
    assistant: Assistant,
    run: Arc<F>,
    editor: Editor,
    title: Option<String>,
}

impl<F, Fut> AcpAgent<F>
where
    F: Fn(UserPrompt, AgentTurn) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<TurnEnd, ToolError>> + Send + 'static,
{
    /// Sets the person that the assistant's own tools ask. Default: nobody.
    pub fn editor(mut self, editor: Editor) -> Self {
        self.editor = editor;
        self
    }

    /// Sets the name that an editor shows for the agent. Default: `toolbridge`.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// Serves the editor that has started this process, over standard input and output, until it closes standard input.
    /// Nothing else in the process may print to standard output.
    ///
    /// # Errors
    /// [`AcpServeError::Left`] if the assistant leaves the room, [`AcpServeError::Read`] if standard input cannot be read,
    /// [`AcpServeError::Write`] if standard output cannot be written to. An editor that closes it is no error.
    ///
    /// # Cancel safety
    /// Dropping the future ends the connection and cancels its calls.
    pub async fn stdio(self) -> Result<(), AcpServeError> {
        self.over(tokio::io::stdin(), tokio::io::stdout()).await
    }

    /// Serves one editor over a byte stream, one JSON message per line, until it closes it. A line has at most 8 MiB, and at
    /// most 64 sessions are remembered.
    ///
    /// # Errors
    /// As [`stdio`](Self::stdio).
    ///
    /// # Cancel safety
    /// Dropping the future ends the connection and cancels its calls.
    pub async fn over(
        self,
        read: impl AsyncRead + Send + Unpin,
        write: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<(), AcpServeError> {
        let assistant = self.assistant.clone();
        let (connection, writer) = Connection::new();
        let open = Arc::new(Turns::default());
        self.editor.attach(&open);
        let mut writing = JoinSet::new(); // aborted with this future
        writing.spawn(writer.write(write));
        let mut service = Service::new(self.assistant, self.run, Arc::clone(&connection), open, self.title);
        let ended = tokio::select! {
            biased;
            ended = service.serve(read) => ended.map_err(AcpServeError::Read),
            written = writing.join_next() => as_written(written), // the editor reads no more
            reason = assistant.closed() => Err(AcpServeError::Left(reason)),
        };
        service.end().await;
        connection.peer.close();
        // What was sent last is still written.
        let last = timeout(LAST_WRITE, writing.join_next()).await;
        ended.and_then(|()| last.map_or(Ok(()), as_written))
    }
}

impl<F> fmt::Debug for AcpAgent<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcpAgent").field("title", &self.title).finish_non_exhaustive()
    }
}

/// Why a connection to an editor ended with an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcpServeError {
    /// What the editor sends cannot be read.
    #[error("the editor's messages cannot be read: {0}")]
    Read(#[source] io::Error),
    /// What the editor is to read cannot be written, such as to a full disk.
    #[error("the messages to the editor cannot be written: {0}")]
    Write(#[source] io::Error),
    /// The assistant has left the room.
    #[error("not in the room: {0}")]
    Left(CloseReason),
}

/// Returns how the writing task has ended: without an error if the editor has closed its end.
fn as_written(written: Option<Result<io::Result<()>, JoinError>>) -> Result<(), AcpServeError> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset};
    match written {
        Some(Ok(Err(error))) if !matches!(error.kind(), BrokenPipe | ConnectionReset) => {
            Err(AcpServeError::Write(error))
        }
        _ => Ok(()),
    }
}
