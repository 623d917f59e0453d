//! Keeps a turn: one reply of the model, its calls, and the barge-in that ends them.

use std::sync::Arc;

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{Assistant, CallBuilder, Handle, now};
use crate::{
    protocol::session::{LateResult, TurnKey},
    tool::Offer,
};

/// The calls of one reply of the model. It is a handle: clones refer to the same turn.
///
/// When the user interrupts, [`barge_in`](Turn::barge_in) settles every open call of the turn at once. Dropping the
/// last handle does not affect open calls.
///
/// ```no_run
/// # async fn interrupted() {}
/// # async fn answer(assistant: toolbridge::Assistant) {
/// let turn = assistant.turn();
/// let call = turn.call("export_album", serde_json::json!({"album": "Rome"})).start();
/// let result = tokio::select! {
///     result = call => result,
///     () = interrupted() => return turn.barge_in(),
/// };
/// # drop(result);
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Turn {
    open: Arc<OpenTurn>,
}

impl Turn {
    /// Creates a call of this tool as part of the turn, to be awaited or started: see [`Assistant::call`].
    ///
    /// A turn may make the same call with equal arguments 5 times
    /// ([`CallCaps::equal_calls`](crate::protocol::session::CallCaps::equal_calls)).
    pub fn call(&self, tool: &str, arguments: impl Serialize) -> CallBuilder {
        CallBuilder::new(Arc::clone(&self.open.handle), tool, &arguments).in_turn(&self.open)
    }

    /// Returns the tools that can be called now: this assistant's own and those of the clients.
    pub fn tools(&self) -> Vec<Offer> {
        self.open.handle.0.lock().session.tools()
    }

    /// Ends the turn because the user interrupted: each open call settles at once, as its tool specifies.
    ///
    /// By default it is stopped and settles as [`Cancelled`](crate::CallError::Cancelled). With
    /// [`Finish`](crate::BargeIn::Finish) it settles as [`Unawaited`](crate::CallError::Unawaited) and the tool continues. With
    /// [`Report`](crate::BargeIn::Report) it settles as [`Detached`](crate::CallError::Detached), and
    /// [`Assistant::late_results`] returns its result. Further calls of this turn are refused.
    pub fn barge_in(&self) {
        let shared = &self.open.handle.0;
        shared.lock().session.barge_in(now(), self.open.key);
        shared.wake.notify_one();
        self.open.interrupted.cancel();
    }

    /// Resolves when the user has interrupted the turn: see [`barge_in`](Turn::barge_in).
    ///
    /// # Cancel safety
    /// Safe: dropping it loses nothing.
    pub fn interrupted(&self) -> impl Future<Output = ()> + Send + 'static {
        self.open.interrupted.clone().cancelled_owned()
    }

    /// Returns its key, as in [`CallRecord::turn`](crate::CallRecord::turn).
    pub fn key(&self) -> TurnKey {
        self.open.key
    }
}

impl Assistant {
    /// Starts a turn: one reply of the model, whose calls a barge-in ends together.
    pub fn turn(&self) -> Turn {
        let handle = Arc::clone(self.handle());
        let key = handle.0.lock().session.turn();
        Turn { open: Arc::new(OpenTurn { handle, key, interrupted: CancellationToken::new() }) }
    }

    /// Returns the results of calls that a barge-in had left running, since the last call of this method: at most 32,
    /// and 256 KiB.
    ///
    /// To tell the model about them, see [`chat::note`](crate::runtime::participant::chat::note).
    pub fn late_results(&self) -> Vec<LateResult> {
        self.handle().0.lock().session.late_results()
    }
}

/// A turn that accepts calls, until the last of its handles and unsent calls is dropped.
#[derive(Debug)]
pub(super) struct OpenTurn {
    handle: Arc<Handle>,
    pub(super) key: TurnKey,
    interrupted: CancellationToken,
}

impl Drop for OpenTurn {
    fn drop(&mut self) {
        if let Some(mut inner) = self.handle.0.lock_to_drop() {
            inner.session.end_turn(self.key);
        }
    }
}
