//! Open questions to a person. Each ends as yes or no, or is withdrawn.

use std::{collections::HashMap, fmt, future::Future, hash::Hash};

use tokio::task::{AbortHandle, JoinSet};

use super::caught::Caught;
use crate::{tool::ToolError, value::Value};

/// The open questions. Their number is limited elsewhere.
pub(crate) struct Questions<K> {
    running: JoinSet<(K, bool)>,
    open: HashMap<K, AbortHandle>,
}

impl<K: Copy + Eq + Hash + Send + 'static> Questions<K> {
    pub(crate) fn new() -> Self {
        Self { running: JoinSet::new(), open: HashMap::new() }
    }

    /// Asks a question. One that panics counts as no.
    pub(crate) fn ask(&mut self, key: K, question: impl Future<Output = bool> + Send + 'static) {
        let handle = self.running.spawn(async move {
            let no = || Err(ToolError::cancelled());
            let asked = async { if question.await { Ok(Value::empty()) } else { no() } };
            (key, Caught::new(asked).await.is_ok())
        });
        self.open.insert(key, handle);
    }

    /// Withdraws a question by dropping its future. Returns whether it was open.
    pub(crate) fn withdraw(&mut self, key: K) -> bool {
        let found = self.open.remove(&key);
        if let Some(handle) = &found {
            handle.abort();
        }
        found.is_some()
    }

    /// Returns the next answer. Never resolves while no question is open.
    ///
    /// # Cancel safety
    /// Safe: no answer is lost.
    pub(crate) async fn answer(&mut self) -> (K, bool) {
        loop {
            match self.running.join_next().await {
                Some(Ok((key, allowed))) if self.open.remove(&key).is_some() => return (key, allowed),
                Some(_) => {} // taken back
                None => return std::future::pending().await,
            }
        }
    }
}

impl<K> fmt::Debug for Questions<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Questions").field("open", &self.open.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn question_ends_as_yes_or_no_and_a_panic_counts_as_no() {
        let mut questions = Questions::new();
        questions.ask(1, async { true });
        assert_eq!(questions.answer().await, (1, true));
        questions.ask(2, async { panic!("planted") });
        assert_eq!(questions.answer().await, (2, false));
    }

    #[tokio::test]
    async fn withdrawn_question_is_dropped() {
        let (dropped, drops) = tokio::sync::oneshot::channel::<()>();
        let mut questions = Questions::new();
        questions.ask(1, async move {
            let _held = dropped;
            std::future::pending().await
        });
        assert!(questions.withdraw(1) && !questions.withdraw(1));
        questions.ask(2, async { true });
        assert_eq!(questions.answer().await, (2, true));
        assert!(drops.await.is_err(), "its sender went with the future");
    }
}
