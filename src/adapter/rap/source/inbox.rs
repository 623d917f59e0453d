//! Holds the open calls of a toolset, and applies the messages of its tools to them.
//!
//! Each call has a token of its own, which is a part of its callback URL. It counts until the call's time and a grace period
//! of the same length are over, in a subscription until that ends. A message must name the group and the call of its token.
//! Nothing else has an effect.

mod state;

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::Value as Json;
use tokio::{
    sync::{Notify, Semaphore, mpsc, oneshot},
    time::Instant,
};

use self::state::{Entry, MAX_QUESTIONS, Phase, State};
use super::{
    counts::{Counters, RapCounts, count},
    rate::Rate,
    reports::{Origin, Reports, Told},
    views::Views,
};
use crate::{
    ToolName,
    adapter::{
        rap::{
            RapResult, RapResultError,
            document::{Choice, Event, Message, MessageContent, MessageError},
        },
        web::secret::{Digest, DigestKey, random_text},
    },
};

/// The most subscriptions at once.
const MAX_SUBSCRIPTIONS: usize = 64;

/// How long a call is remembered after its subscription, at least: its tool may send the last event again.
const AFTER_SUBSCRIPTION: Duration = Duration::from_secs(60);

/// The messages of one call: on average, and at once. A tool that reports faster hears that it should slow down.
const CALL_RATE: Rate = Rate::new(200, 400);

/// The bodies of one call's messages that are read at once, in MiB: as much as the largest message has, so that the
/// messages of one call leave room for those of others.
pub(super) const CALL_BODIES: usize = 16;

/// The requests with unknown tokens: on average, and at once.
const UNKNOWN_RATE: Rate = Rate::new(200, 400);

/// Why a message is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// There is no such call, or the message belongs to another one.
    Unknown,
    /// The call is over.
    Over,
    TooMany,
    /// The room cannot take it now. The tool is to send it again.
    NotNow,
    Malformed(String),
}

/// A question of a tool to the person.
pub(super) enum Question {
    SignIn { url: String },
    Choose(Choice),
}

/// The result of a call, and what became of a subscription that it has started.
pub(super) struct Answer {
    pub(super) result: RapResult,
    pub(super) subscription: Subscribed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subscribed {
    No,
    Yes,
    /// Its last event came before the result.
    Ended,
    /// Only an assistant can receive events.
    NotHere,
    TooMany,
}

/// What a call tells the inbox.
pub(super) struct NewCall {
    pub(super) id: String,
    pub(super) call_id: Option<String>,
    pub(super) tool: ToolName,
    pub(super) is_structured: bool,
    pub(super) reports: Reports,
    /// The time that the call has.
    pub(super) limit: Duration,
}

/// A call that was opened. Dropping it ends the call.
pub(super) struct OpenCall {
    pub(super) id: String,
    /// The secret part of the callback URL.
    pub(super) token: String,
    /// The error says why the tool's result cannot be read.
    pub(super) result: oneshot::Receiver<Result<Answer, String>>,
    pub(super) questions: mpsc::Receiver<Question>,
    inbox: Arc<Inbox>,
    digest: Digest,
}

/// How a call without a result ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Its time is over. A result that comes within the grace period is reported.
    Late,
    /// Nothing of it is of interest.
    Over,
}

impl OpenCall {
    /// Ends the call. Returns whether it had no result yet, so that its tool may still work on it.
    pub(super) fn end(&self, how: End) -> bool {
        self.inbox.end(&self.digest, how)
    }

    /// Returns what the inbox knows it by.
    pub(super) fn digest(&self) -> Digest {
        self.digest
    }

    /// Returns what went wrong last, if the call has no result.
    pub(super) fn trouble(&self) -> Option<String> {
        let state = self.inbox.state();
        let entry = state.entries.get(&self.digest)?;
        entry.trouble.clone().filter(|_| matches!(entry.phase, Phase::Open { .. }))
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.end(End::Over);
    }
}

pub(super) struct Inbox {
    group: String,
    key: DigestKey,
    state: Mutex<State>,
    counters: Counters,
    views: Views,
    /// Notified when the first subscription starts and when the last one ends.
    pub(super) changed: Notify,
    /// The ids of calls that their tools shall cancel. `None` once the source is closed.
    cancels: Mutex<Option<mpsc::Sender<String>>>,
}

impl Inbox {
    pub(super) fn new(group: String, cancels: mpsc::Sender<String>) -> io::Result<Self> {
        Ok(Self {
            group,
            key: DigestKey::random()?,
            state: Mutex::default(),
            counters: Counters::default(),
            views: Views::default(),
            changed: Notify::new(),
            cancels: Mutex::new(Some(cancels)),
        })
    }

    pub(super) fn group(&self) -> &str {
        &self.group
    }

    pub(super) fn counts(&self) -> RapCounts {
        self.counters.read()
    }

    /// Opens a call. Its id is changed if another call has it.
    pub(super) fn open(self: &Arc<Self>, call: NewCall) -> io::Result<OpenCall> {
        let token = random_text()?;
        let other_id = random_text()?;
        let digest = self.key.digest(token.as_bytes());
        let (result, answered) = oneshot::channel();
        let (questions, asked) = mpsc::channel(MAX_QUESTIONS);
        let mut state = self.state();
        let now = Instant::now();
        state.forget(now);
        state.make_place();
        let id = if state.by_id.contains_key(&call.id) { other_id } else { call.id };
        state.by_id.insert(id.clone(), digest);
        let end = now.checked_add(call.limit.saturating_mul(2)).unwrap_or(now + Duration::from_secs(86_400));
        state.ends.insert((end, digest));
        let entry = Entry {
            id: id.clone(),
            call_id: call.call_id,
            tool: call.tool,
            is_structured: call.is_structured,
            reports: call.reports,
            phase: Phase::Open { result, questions },
            asked: 0,
            early: Vec::new(),
            is_subscribed: false,
            end,
            rate: CALL_RATE,
            bodies: Arc::new(Semaphore::new(CALL_BODIES)),
            trouble: None,
        };
        state.entries.insert(digest, entry);
        drop(state);
        Ok(OpenCall { id, token, result: answered, questions: asked, inbox: Arc::clone(self), digest })
    }

    /// Returns the call that a token belongs to, and the memory that its messages share. Called before the message is read.
    pub(super) fn admit(&self, token: &str) -> Result<(Digest, Arc<Semaphore>), Refusal> {
        let digest = self.key.digest(token.as_bytes());
        let now = Instant::now();
        let mut state = self.state();
        state.forget(now);
        if let Some(entry) = state.entries.get_mut(&digest) {
            if entry.rate.take(now) {
                return Ok((digest, Arc::clone(&entry.bodies)));
            }
            count(&self.counters.too_many);
            return Err(Refusal::TooMany);
        }
        if !state.unknown.get_or_insert(UNKNOWN_RATE).take(now) {
            count(&self.counters.too_many);
            return Err(Refusal::TooMany);
        }
        let is_past = state.is_past.contains(&digest);
        count(if is_past { &self.counters.over } else { &self.counters.unknown });
        Err(if is_past { Refusal::Over } else { Refusal::Unknown })
    }

    /// Notes what went wrong with a call, which explains why it may have no result.
    pub(super) fn note(&self, digest: &Digest, trouble: String) {
        if let Some(entry) = self.state().entries.get_mut(digest) {
            entry.trouble = Some(trouble);
        }
    }

    /// Takes the message of a call. `check` decides whether the answer to a choice may be sent to an address.
    pub(super) fn deliver(
        &self,
        digest: &Digest,
        text: &str,
        check: impl FnOnce(&str) -> Result<(), String>,
    ) -> Result<(), Refusal> {
        // Reported after the lock is released: the room may ask for the tools of this source meanwhile.
        let delivered = self.take(digest, text, check).and_then(|taken| match taken {
            Taken::Done(effect) => Ok(effect),
            Taken::Subscribed(reports, origin, events) => {
                for (event, text) in events {
                    let told = reports.event(&origin, &event, &text);
                    count(if told == Told::Now { &self.counters.accepted } else { &self.counters.dropped });
                }
                Ok(Effect::Accepted)
            }
            Taken::Event(reports, origin, event) => match reports.event(&origin, &event, text) {
                // Of events that come too fast some are dropped, but never the last one.
                Told::NotNow if event.is_final => Err(Refusal::NotNow),
                told => {
                    if event.is_final {
                        self.unsubscribe(&mut self.state(), digest);
                    }
                    Ok(if told == Told::Now { Effect::Accepted } else { Effect::Dropped })
                }
            },
            Taken::Late(reports, origin, result) => match reports.late(&origin, result) {
                Told::NotNow => {
                    self.reopen(digest);
                    Err(Refusal::NotNow)
                }
                Told::Now | Told::Never => Ok(Effect::Late),
            },
            Taken::View(reports, view, content) => {
                let is_shown = self.views.show(reports, view, &content);
                Ok(if is_shown { Effect::Accepted } else { Effect::Dropped })
            }
        });
        let counters = &self.counters;
        count(match &delivered {
            Ok(Effect::Accepted) => &counters.accepted,
            Ok(Effect::Duplicate) => &counters.duplicates,
            Ok(Effect::Late) => &counters.late,
            Ok(Effect::Early) => &counters.early,
            Ok(Effect::Dropped) => &counters.dropped,
            Err(Refusal::Unknown) => &counters.unknown,
            Err(Refusal::Over) => &counters.over,
            Err(Refusal::TooMany) => &counters.too_many,
            Err(Refusal::NotNow) => &counters.not_now,
            Err(Refusal::Malformed(_)) => &counters.malformed,
        });
        delivered.map(|_| ())
    }

    fn take(
        &self,
        digest: &Digest,
        text: &str,
        check: impl FnOnce(&str) -> Result<(), String>,
    ) -> Result<Taken, Refusal> {
        let message =
            Message::read(text).map_err(|error: MessageError| Refusal::Malformed(error.to_string()))?;
        let mut result = None;
        if matches!(message.content, MessageContent::Result) {
            let read = {
                let mut state = self.state();
                let entry = self.entry(&mut state, digest, &message)?;
                if matches!(entry.phase, Phase::Settled) {
                    return Ok(Taken::Done(Effect::Duplicate));
                }
                if entry.is_structured { RapResult::read_structured } else { RapResult::read }
            };
            // Without the lock: it may have 16 MiB.
            let read = read(text).map_err(|error: RapResultError| error.to_string());
            result = Some(read.map_err(|reason| {
                self.fail(digest, &reason);
                Refusal::Malformed(reason)
            })?);
        }
        let mut state = self.state();
        let state = &mut *state;
        let entry = self.entry(state, digest, &message)?;
        match message.content {
            MessageContent::Result => Ok(match result {
                Some(result) => self.result(state, digest, result),
                None => Taken::Done(Effect::Dropped), // it was read above
            }),
            MessageContent::Event(event) => Ok(self.event(state, digest, event, text)),
            MessageContent::View { view, content } => Ok(Taken::View(entry.reports.clone(), view, content)),
            MessageContent::SignIn { url } if url.starts_with("https://") => {
                entry.ask(Question::SignIn { url }).map(Taken::Done)
            }
            MessageContent::SignIn { .. } => Err(Refusal::Malformed("`auth_url` must use https".to_owned())),
            MessageContent::Choice(choice) => {
                check(&choice.response_url).map_err(|reason| {
                    Refusal::Malformed(format!("`response_url` cannot be used: {reason}"))
                })?;
                entry.ask(Question::Choose(choice)).map(Taken::Done)
            }
        }
    }

    /// Returns the call of a message, which may have ended while the message was read.
    fn entry<'a>(
        &self,
        state: &'a mut State,
        digest: &Digest,
        message: &Message,
    ) -> Result<&'a mut Entry, Refusal> {
        let entry = state.entries.get_mut(digest).ok_or(Refusal::Over)?;
        if message.group != self.group || message.id.as_ref().is_some_and(|id| *id != entry.id) {
            return Err(Refusal::Unknown);
        }
        if message.call_id.is_some() && message.call_id != entry.call_id {
            return Err(Refusal::Malformed("`call_id` is not that of the invocation".to_owned()));
        }
        Ok(entry)
    }

    fn result(&self, state: &mut State, digest: &Digest, result: RapResult) -> Taken {
        let subscriptions = state.subscriptions;
        let Some(entry) = state.entries.get_mut(digest) else { return Taken::Done(Effect::Dropped) };
        let starts = result.is_subscription && !result.is_error;
        match std::mem::replace(&mut entry.phase, Phase::Settled) {
            Phase::Open { result: to, .. } => {
                let early = std::mem::take(&mut entry.early);
                let subscription = match (starts, entry.reports.can_report()) {
                    (false, _) => Subscribed::No,
                    (true, false) => Subscribed::NotHere,
                    (true, true) if early.last().is_some_and(|(event, _)| event.is_final) => {
                        Subscribed::Ended
                    }
                    (true, true) if subscriptions >= MAX_SUBSCRIPTIONS => Subscribed::TooMany,
                    (true, true) => Subscribed::Yes,
                };
                match subscription {
                    Subscribed::Yes => {
                        entry.is_subscribed = true;
                        state.ends.remove(&(entry.end, *digest));
                        state.subscriptions += 1;
                        self.changed.notify_one();
                    }
                    Subscribed::NotHere | Subscribed::TooMany => self.cancel(&entry.id),
                    Subscribed::No | Subscribed::Ended => {}
                }
                let (reports, origin) = (entry.reports.clone(), entry.origin());
                let is_awaited = to.send(Ok(Answer { result, subscription })).is_ok();
                if !is_awaited && subscription == Subscribed::Yes {
                    self.cancel(&origin.id); // the call has just ended
                    self.unsubscribe(state, digest);
                } else if matches!(subscription, Subscribed::Yes | Subscribed::Ended) {
                    return Taken::Subscribed(reports, origin, early);
                }
                early.iter().for_each(|_| count(&self.counters.dropped));
                Taken::Done(Effect::Accepted)
            }
            Phase::Late => {
                let mut result = result;
                if starts {
                    self.cancel(&entry.id);
                    let text = "The subscription that this call has started was cancelled at once, because its result came too late.";
                    result.result = result.result.with_text(text);
                }
                Taken::Late(entry.reports.clone(), entry.origin(), result)
            }
            Phase::Settled => Taken::Done(Effect::Duplicate),
        }
    }

    /// Fails an open call whose tool has sent a result that cannot be read: no other one follows.
    fn fail(&self, digest: &Digest, reason: &str) {
        let mut state = self.state();
        let Some(entry) = state.entries.get_mut(digest) else { return };
        if !matches!(entry.phase, Phase::Open { .. }) {
            return;
        }
        if let Phase::Open { result, .. } = std::mem::replace(&mut entry.phase, Phase::Settled) {
            std::mem::take(&mut entry.early).iter().for_each(|_| count(&self.counters.dropped));
            let _ = result.send(Err(reason.to_owned())); // its caller may have gone
        }
    }

    fn event(&self, state: &mut State, digest: &Digest, event: Event, text: &str) -> Taken {
        let Some(entry) = state.entries.get_mut(digest) else { return Taken::Done(Effect::Dropped) };
        if !entry.is_subscribed {
            return Taken::Done(entry.keep(event, text, &self.counters));
        }
        Taken::Event(entry.reports.clone(), entry.origin(), event)
    }

    /// Ends a subscription by the id of its call. Returns whether there was one.
    pub(super) fn cancel_subscription(&self, id: &str) -> bool {
        let mut state = self.state();
        let state = &mut *state;
        let Some(digest) = state.by_id.get(id).copied() else { return false };
        if !state.entries.get(&digest).is_some_and(|it| it.is_subscribed) {
            return false;
        }
        self.cancel(id);
        self.unsubscribe(state, &digest);
        state.remove(&digest);
        true
    }

    /// Returns whether a subscription is active.
    pub(super) fn has_subscriptions(&self) -> bool {
        self.state().subscriptions > 0
    }

    /// Ends the tracking of a subscription. Its entry stays for its time, so that a repeated message has no effect.
    fn unsubscribe(&self, state: &mut State, digest: &Digest) {
        let Some(entry) = state.entries.get_mut(digest).filter(|it| it.is_subscribed) else { return };
        entry.is_subscribed = false;
        entry.end = entry.end.max(Instant::now() + AFTER_SUBSCRIPTION);
        state.ends.insert((entry.end, *digest));
        state.subscriptions -= 1;
        self.changed.notify_one();
    }

    fn end(&self, digest: &Digest, how: End) -> bool {
        let mut state = self.state();
        let Some(entry) = state.entries.get_mut(digest) else { return false };
        if !matches!(entry.phase, Phase::Open { .. }) {
            return false;
        }
        match how {
            End::Late => {
                entry.phase = Phase::Late;
                entry.early.clear(); // a late result starts no subscription
            }
            End::Over => state.remove(digest),
        }
        true
    }

    /// Awaits the late result of a call again.
    fn reopen(&self, digest: &Digest) {
        if let Some(entry) = self.state().entries.get_mut(digest) {
            entry.phase = Phase::Late;
        }
    }

    /// Has the tool cancel a call. Nobody waits for it.
    pub(super) fn cancel(&self, id: &str) {
        let cancels = self.cancels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cancels) = &*cancels
            && cancels.try_send(id.to_owned()).is_err()
        {
            self.count_not_cancelled();
            tracing::warn!(call = id, "a cancellation was not sent: too many others wait");
        }
    }

    /// Counts a cancellation that its server does not get.
    pub(super) fn count_not_cancelled(&self) {
        count(&self.counters.not_cancelled);
    }

    /// Ends the views, and sends no further cancellations. Those that wait are still sent.
    pub(super) fn close(&self) {
        self.views.end();
        self.cancels.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a message does that was not refused.
enum Taken {
    Done(Effect),
    /// A subscription, and the events that came before.
    Subscribed(Reports, Origin, Vec<(Event, String)>),
    Event(Reports, Origin, Event),
    Late(Reports, Origin, RapResult),
    View(Reports, String, Json),
}

/// What an accepted message did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Accepted,
    Duplicate,
    Late,
    /// It is kept until the call has a result.
    Early,
    Dropped,
}

#[cfg(test)]
mod tests;
