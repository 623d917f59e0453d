//! The queue of outgoing messages of one signaling connection.

use std::{sync::Arc, time::Duration};

use livekit_protocol::signal_request::Message;
use livekit_signaling::SignalClient;
use tokio::{sync::mpsc, task::AbortHandle, time};

/// The time limit of writing one message. A server that reads nothing for longer is detected elsewhere.
const SAY: Duration = Duration::from_secs(3);
/// The capacity of the queue. A resume queues about a dozen messages.
const MAX_WAITING: usize = 64;

/// A queue and the task that empties it. Dropping it ends both.
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
            tracing::debug!(limit = MAX_WAITING, "the signaling queue is full; a message was dropped");
        }
    }
}

impl Drop for OutgoingMessages {
    fn drop(&mut self) {
        self.task.abort();
    }
}
