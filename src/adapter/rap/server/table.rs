//! Remembers the calls that were accepted, so that each runs once, however often it is sent.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::invocation::{Key, Notice};

/// The most calls that run or whose results are on their way. A result is sent for up to three minutes.
pub(super) const MAX_OPEN: usize = 256;

/// The most ended calls that are remembered: at most 4 MiB of ids.
const MAX_ENDED: usize = 4_096;

/// How long an ended call is remembered. Runtimes repeat a call that was not answered within seconds.
const MEMORY: Duration = Duration::from_secs(600);

/// Whether a call is to be run.
#[derive(Debug)]
pub(super) enum Accepted {
    /// It is new. Its token is cancelled when the runtime no longer wants it.
    New(CancellationToken),
    /// It was accepted before.
    Repeated,
    /// Too many are open.
    Full,
}

/// All calls that are known.
#[derive(Default)]
pub(super) struct Table(Mutex<Calls>);

#[derive(Default)]
struct Calls {
    /// Of an ended call, `None`.
    known: HashMap<Key, Option<CancellationToken>>,
    ended: VecDeque<(Instant, Key)>,
}

impl Table {
    /// Accepts a call, unless it is known already.
    pub(super) fn accept(&self, key: &Key) -> Accepted {
        let mut calls = self.calls();
        calls.forget(Instant::now());
        if calls.known.contains_key(key) {
            return Accepted::Repeated;
        }
        if calls.known.len() - calls.ended.len() >= MAX_OPEN {
            return Accepted::Full;
        }
        let token = CancellationToken::new();
        calls.known.insert(key.clone(), Some(token.clone()));
        Accepted::New(token)
    }

    /// Returns whether a call is known.
    pub(super) fn knows(&self, key: &Key) -> bool {
        self.calls().known.contains_key(key)
    }

    /// Ends a call. It is remembered for a while.
    pub(super) fn end(&self, key: Key) {
        let mut calls = self.calls();
        if let Some(token) = calls.known.get_mut(&key)
            && token.take().is_some()
        {
            let now = Instant::now();
            calls.ended.push_back((now, key));
            calls.forget(now);
        }
    }

    /// Cancels the open calls that a notice names, and returns how many.
    pub(super) fn cancel(&self, notice: &Notice) -> usize {
        let calls = self.calls();
        let named: Vec<_> = match &notice.id {
            Some(id) => {
                let key = Key { group: notice.group.clone(), id: id.clone() };
                calls.known.get(&key).into_iter().flatten().collect()
            }
            None => calls
                .known
                .iter()
                .filter(|(key, _)| notice.names(key))
                .filter_map(|(_, it)| it.as_ref())
                .collect(),
        };
        named.iter().for_each(|token| token.cancel());
        named.len()
    }

    /// Cancels all open calls.
    pub(super) fn cancel_all(&self) {
        self.calls().known.values().flatten().for_each(CancellationToken::cancel);
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Calls {
    /// Forgets the calls that ended long ago, and the oldest of too many.
    fn forget(&mut self, now: Instant) {
        while let Some((ended, _)) = self.ended.front()
            && (self.ended.len() > MAX_ENDED || now.duration_since(*ended) >= MEMORY)
        {
            if let Some((_, key)) = self.ended.pop_front() {
                self.known.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(group: &str, id: impl std::fmt::Display) -> Key {
        Key { group: group.into(), id: format!("{id}") }
    }

    fn is_new(table: &Table, key: &Key) -> bool {
        matches!(table.accept(key), Accepted::New(_))
    }

    #[tokio::test(start_paused = true)]
    async fn repeated_call_is_known_until_long_after_its_end() {
        let table = Table::default();
        let call = key("g", "c");
        assert!(is_new(&table, &call));
        tokio::time::advance(2 * MEMORY).await;
        assert!(matches!(table.accept(&call), Accepted::Repeated), "it runs");
        table.end(call.clone());
        table.end(call.clone());
        tokio::time::advance(MEMORY - Duration::from_secs(1)).await;
        assert!(matches!(table.accept(&call), Accepted::Repeated));
        assert!(is_new(&table, &key("other", "c")), "another thread has its own ids");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(is_new(&table, &call));
    }

    #[test]
    fn open_and_ended_calls_are_limited() {
        let table = Table::default();
        for n in 0..MAX_OPEN {
            assert!(is_new(&table, &key("g", n)));
        }
        assert!(matches!(table.accept(&key("g", MAX_OPEN)), Accepted::Full));
        assert!(matches!(table.accept(&key("g", 0)), Accepted::Repeated));
        for n in 0..=MAX_ENDED {
            let call = key("h", n);
            table.end(key("g", n));
            assert!(is_new(&table, &call));
            table.end(call);
        }
        let calls = table.calls();
        assert_eq!((calls.ended.len(), calls.known.len()), (MAX_ENDED, MAX_ENDED));
    }

    #[test]
    fn notice_cancels_the_open_calls_that_it_names() {
        let table = Table::default();
        let token = |key: &Key| match table.accept(key) {
            Accepted::New(token) => token,
            other => panic!("{other:?}"),
        };
        let tokens = [key("g", 1), key("g", 2), key("h", 1)].map(|key| token(&key));
        let cancelled = || tokens.each_ref().map(CancellationToken::is_cancelled);
        let notice = |id: Option<&str>| Notice { group: "g".into(), id: id.map(str::to_owned) };
        assert_eq!(table.cancel(&notice(Some("unknown"))), 0);
        assert_eq!(table.cancel(&notice(Some("2"))), 1);
        assert_eq!(cancelled(), [false, true, false]);
        table.end(key("g", 2));
        assert_eq!(table.cancel(&notice(None)), 1);
        assert_eq!(cancelled(), [true, true, false]);
        table.cancel_all();
        assert_eq!(cancelled(), [true; 3]);
    }
}
