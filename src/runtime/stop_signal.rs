//! Stops a running call.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

use crate::tool::StopReason;

/// Stops one call and gives its tool the reason.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopSignal {
    token: CancellationToken,
    reason: Arc<OnceLock<StopReason>>,
}

impl StopSignal {
    /// Creates a signal of the author's token, which names no reason.
    pub(crate) fn of(token: CancellationToken) -> Self {
        Self { token, reason: Arc::default() }
    }

    /// Stops the call. The first reason counts.
    pub(crate) fn stop(&self, reason: StopReason) {
        let _ = self.reason.set(reason);
        self.token.cancel();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.token.is_cancelled()
    }

    pub(crate) fn reason(&self) -> Option<StopReason> {
        self.is_stopped().then(|| self.reason.get().copied().unwrap_or(StopReason::Caller))
    }

    /// Resolves when the call is stopped.
    pub(crate) async fn stopped(&self) {
        self.token.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_reason_counts() {
        let signal = StopSignal::default();
        assert_eq!(signal.reason(), None);
        signal.stop(StopReason::BargeIn);
        signal.stop(StopReason::Deadline);
        assert_eq!(signal.reason(), Some(StopReason::BargeIn));
    }

    #[test]
    fn cancellation_by_a_token_counts_as_the_callers() {
        let token = CancellationToken::new();
        let signal = StopSignal::of(token.clone());
        assert_eq!(signal.reason(), None);
        token.cancel();
        assert_eq!(signal.reason(), Some(StopReason::Caller));
    }
}
