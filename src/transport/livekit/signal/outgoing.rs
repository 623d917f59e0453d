//! What we say over one signaling connection, in order.

use std::{sync::Arc, time::Duration};

use livekit_protocol::signal_request::Message;
use livekit_signaling::SignalClient;
use tokio::{sync::mpsc, task::AbortHandle, time};

/// How long a word of ours may take to be on its way. Whoever takes nothing for so long is found dead elsewhere.
const SAY: Duration = Duration::from_secs(3);
/// How many outgoing wait at most: those of a resume are a dozen.
const MAX_WAITING: usize = 64;

/// A queue and the task that empties it; dropped, both are gone.
pub(super) struct OutgoingMessages {
    queue: mpsc::Sender<Message>,
    task: AbortHandle,
}

impl OutgoingMessages {
    pub(super) fn new(client: Arc<SignalClient>) -> Self {
        let (queue, mut waiting) = mpsc::channel(MAX_WAITING);
        let task = tokio::spawn(async move {
            while let Some(message) = waiting.recv().await {
                let _ = time::timeout(SAY, client.send(message)).await;
            }
        });
        Self { queue, task: task.abort_handle() }
    }

    pub(super) fn say(&self, message: Message) {
        if self.queue.try_send(message).is_err() {
            tracing::debug!(limit = MAX_WAITING, "the signaling takes nothing: a word is left unsaid");
        }
    }
}

impl Drop for OutgoingMessages {
    fn drop(&mut self) {
        self.task.abort();
    }
}
