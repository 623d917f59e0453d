//! Sends and observes views: what an assistant shows to its clients and replaces from time to time
//! (`wire.md`, section 4.15).
//!
//! Each client acknowledges the states that it gets. What it has not acknowledged, it is sent again when something may have
//! kept it away: with a handshake or registration, when the transport has room, and when the connection or the permission
//! is back.

use std::{collections::VecDeque, time::Duration};

use super::{
    Counter, Event, SendFailure,
    core::Core,
    delivery::{Purpose, Unfit},
    peers::Remote,
    recipients::Feature,
    timers::Timer,
};
use crate::{
    clock::Instant,
    protocol::frame::{Message, Meta, ViewUpdate},
    sorted::SortedMap,
    tool::{ReportError, public::stripped},
    transport::Identity,
    value::Value,
};

/// The most views of one assistant.
const MAX_VIEWS: usize = ViewUpdate::MAX_OPEN;

/// The most names that an assistant remembers: those of its views, and of ended ones whose end clients have not
/// acknowledged.
const MAX_NAMES: usize = 4 * MAX_VIEWS;

/// The latest state of each view.
#[derive(Debug, Default)]
pub(super) struct Views {
    /// At most [`MAX_NAMES`] views, of which at most [`MAX_VIEWS`] have not ended. The place of a view is its timer's.
    shown: Vec<View>,
    /// Client: the views that the bound assistant shows, at most [`MAX_VIEWS`], that with the oldest state first.
    seen: VecDeque<String>,
}

#[derive(Debug)]
struct View {
    latest: ViewUpdate,
    /// When the last state was sent.
    at: Option<Instant>,
    /// Whether the latest state waits because the one before was sent a moment ago.
    is_held: bool,
    /// The clients that may know the view, and how far each has its latest state.
    clients: SortedMap<Identity, Progress>,
}

/// How far a client has the latest state of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// The state must be sent.
    Due,
    /// It was sent under this stanza.
    Sent(i32),
    /// The client has it, or cannot acknowledge it.
    Done,
}

impl Progress {
    /// Stops sending a client a state that it has not acknowledged.
    fn withdraw(self, core: &mut Core, id: &Identity) {
        if let Self::Sent(stanza) = self {
            core.delivery.withdraw_frame(id, stanza);
        }
    }
}

impl View {
    fn has_ended(&self) -> bool {
        self.latest.content.is_nil()
    }

    /// Returns whether all clients know that it has ended, so that its place may be used by another view.
    fn is_over(&self) -> bool {
        self.has_ended() && !self.is_held && self.clients.values().all(|it| *it == Progress::Done)
    }
}

impl Views {
    /// Replaces the state of a view, and sends it unless the last one was sent a moment ago.
    pub(super) fn show(&mut self, core: &mut Core, latest: ViewUpdate) -> Result<(), ReportError> {
        if core.cx.is_client() {
            return Err(ReportError::NotAnAssistant);
        }
        let name = latest.view.as_str();
        if name.is_empty() || name.len() > ViewUpdate::MAX_NAME || name.chars().any(char::is_control) {
            return Err(ReportError::View { limit: ViewUpdate::MAX_NAME });
        }
        let size = latest.size();
        if size > ViewUpdate::MAX_SIZE {
            return Err(ReportError::TooLarge { size, limit: ViewUpdate::MAX_SIZE });
        }
        let Some(place) = self.place(core, &latest)? else { return Ok(()) }; // a view ends that was never shown
        let Some(view) = self.shown.get_mut(place) else { return Ok(()) };
        view.latest = latest;
        let interval = Duration::from_secs(1) / core.cx.config.caps.requests.progress_per_second.max(1);
        match view.at.map(|at| core.cx.now.saturating_duration_since(at)) {
            Some(since) if since < interval => {
                // The state that waited is dropped, not queued: a view is replaced as a whole, so only the
                // last state counts.
                if std::mem::replace(&mut view.is_held, true) {
                    core.cx.count(Counter::ProgressDropped);
                }
                core.cx.set_timer(Timer::View(place), interval - since);
            }
            _ => self.send(core, place),
        }
        Ok(())
    }

    /// Sends the latest state of a view to all clients.
    pub(super) fn send(&mut self, core: &mut Core, place: usize) {
        let Some(view) = self.shown.get_mut(place) else { return };
        core.cx.timers.cancel(&Timer::View(place));
        view.is_held = false;
        view.at = Some(core.cx.now);
        let has_ended = view.has_ended();
        for (id, progress) in std::mem::take(&mut view.clients) {
            progress.withdraw(core, &id);
            if core.peers.get(&id).is_some() {
                view.clients.insert(id, Progress::Due);
            }
        }
        for (id, _) in core.peers.iter().filter(|(_, it)| !has_ended && it.lists(Feature::View)) {
            view.clients.insert(id.clone(), Progress::Due);
        }
        let clients: Vec<_> = view.clients.keys().cloned().collect();
        core.copy(&Meta::default(), &Message::ViewUpdate(view.latest.clone()));
        for id in clients {
            self.send_due_to(core, &id);
        }
    }

    /// Sends the states that wait because others were sent a moment ago.
    #[cfg(feature = "record")]
    pub(super) fn send_held(&mut self, core: &mut Core) {
        for place in 0..self.shown.len() {
            if self.shown.get(place).is_some_and(|view| view.is_held) {
                self.send(core, place);
            }
        }
    }

    /// Sends a client the states that it must be sent, ends first: a client that has as many views as it takes would end
    /// one for a new one.
    pub(super) fn send_due_to(&mut self, core: &mut Core, id: &Identity) {
        // A client registers with the assistant that it has bound.
        let takes_views = |it: &Remote| it.is_registered() && it.is_reachable() && it.lists(Feature::View);
        if !core.peers.get(id).is_some_and(takes_views) {
            return;
        }
        for ends in [true, false] {
            for view in self.shown.iter_mut().filter(|view| view.has_ended() == ends) {
                if let Some(progress @ Progress::Due) = view.clients.get_mut(id) {
                    *progress = post(core, id, &view.latest, None);
                }
            }
        }
    }

    /// Sends the state again whose stream a client has refused, as it is now.
    pub(super) fn send_refused(&mut self, core: &mut Core, id: &Identity, stanza: i32) {
        let is_it = |it: &&mut Progress| **it == Progress::Sent(stanza);
        for View { latest, clients, .. } in &mut self.shown {
            if let Some(progress) = clients.get_mut(id).filter(is_it) {
                *progress = post(core, id, latest, Some(stanza));
            }
        }
    }

    /// Sends a client again what it has not acknowledged. With `registers` it has registered again: it may have unbound the
    /// local participant meanwhile, and ended all views, or refused them.
    pub(super) fn send_again_to(&mut self, core: &mut Core, id: &Identity, registers: bool) {
        for view in &mut self.shown {
            let is_shown = registers && !view.has_ended();
            match view.clients.get_mut(id) {
                Some(it @ Progress::Sent(..)) => std::mem::replace(it, Progress::Due).withdraw(core, id),
                Some(it @ Progress::Done) if is_shown => *it = Progress::Due,
                _ => {}
            }
        }
        self.send_due_to(core, id);
    }

    /// Sends a client that has registered, and so has bound the local participant, the latest state of every view. One that
    /// has returned gets the ends that it has not acknowledged, too.
    pub(super) fn send_all_to(&mut self, core: &mut Core, id: &Identity) {
        for view in &mut self.shown {
            let before = view.clients.remove(id).inspect(|before| before.withdraw(core, id));
            if !view.has_ended() || before.is_some_and(|it| it != Progress::Done || view.is_held) {
                view.clients.insert(id.clone(), Progress::Due);
            }
        }
        self.send_due_to(core, id);
    }

    /// Forgets a client that has gone, or whose instance was replaced.
    pub(super) fn forget(&mut self, core: &mut Core, id: &Identity) {
        for view in &mut self.shown {
            if let Some(before) = view.clients.remove(id) {
                before.withdraw(core, id);
            }
        }
    }

    /// Notes that a client has the state that was sent under this stanza.
    pub(super) fn acknowledged(&mut self, id: &Identity, stanza: i32) {
        self.set(id, stanza, Progress::Done);
    }

    /// Handles a state whose packet was not sent. It is sent again, unless a later one was.
    pub(super) fn unsent(&mut self, core: &mut Core, id: &Identity, stanza: i32, why: &SendFailure) {
        let is_too_large = matches!(why, SendFailure::TooLarge { .. });
        if is_too_large {
            core.cx.count(Counter::ReportRefused);
        }
        self.set(id, stanza, if is_too_large { Progress::Done } else { Progress::Due });
    }

    fn set(&mut self, id: &Identity, stanza: i32, progress: Progress) {
        let of_client = self.shown.iter_mut().filter_map(|view| view.clients.get_mut(id));
        for it in of_client.filter(|it| matches!(it, Progress::Sent(sent) if *sent == stanza)) {
            *it = progress;
        }
    }

    /// Client: reports the state of a view as the assistant sent it, unless it exceeds the limits. One view too many ends
    /// the one with the oldest state, whose end may have been lost.
    pub(super) fn observe(&mut self, core: &mut Core, id: &Identity, stanza: Option<i32>, view: ViewUpdate) {
        core.to(id).acknowledge(stanza, None);
        if view.view.is_empty()
            || view.view.len() > ViewUpdate::MAX_NAME
            || view.size() > ViewUpdate::MAX_SIZE
        {
            return core.cx.complain_of(id, Counter::Malformed, "a view is too large");
        }
        self.seen.retain(|name| *name != view.view);
        if !view.content.is_nil() {
            if self.seen.len() >= MAX_VIEWS
                && let Some(oldest) = self.seen.pop_front()
            {
                ended(core, id, &oldest);
            }
            self.seen.push_back(view.view.clone());
        }
        core.cx.event(Event::View { by: id.clone(), view });
    }

    /// Client: ends the views of the bound assistant, which is gone or was replaced by another instance.
    pub(super) fn end_seen(&mut self, core: &mut Core, id: &Identity) {
        if core.peers.bound() == Some(id) {
            for name in std::mem::take(&mut self.seen) {
                ended(core, id, &name);
            }
        }
    }

    /// Returns the place of a view; `None` for a view that ends and is not shown.
    fn place(&mut self, core: &mut Core, latest: &ViewUpdate) -> Result<Option<usize>, ReportError> {
        let known = self.shown.iter().position(|view| view.latest.view == latest.view);
        let is_new = known.and_then(|place| self.shown.get(place)).is_none_or(View::has_ended);
        if latest.content.is_nil() {
            return Ok(known);
        }
        let open = self.shown.iter().filter(|view| !view.has_ended()).count();
        if is_new && open >= MAX_VIEWS {
            return Err(ReportError::TooMany { open, limit: MAX_VIEWS });
        }
        if known.is_some() {
            return Ok(known);
        }
        let view = View { latest: latest.clone(), at: None, is_held: false, clients: SortedMap::new() };
        let over = self.shown.iter().position(View::is_over);
        let place = over.or_else(|| {
            // That which ended first: a client that returns must still hear of the end of the others.
            let ended = self.shown.iter().enumerate().filter(|(_, it)| it.has_ended());
            let oldest = ended.min_by_key(|(_, it)| it.at).map(|(place, _)| place);
            oldest.filter(|_| self.shown.len() >= MAX_NAMES)
        });
        match place.and_then(|place| self.shown.get_mut(place)) {
            Some(free) => {
                for (id, progress) in std::mem::replace(free, view).clients {
                    if let Progress::Sent(stanza) = progress {
                        core.delivery.forget_frame(&id, stanza);
                    }
                }
            }
            None => self.shown.push(view),
        }
        Ok(place.or(Some(self.shown.len() - 1)))
    }
}

/// Client: reports that a view has ended.
fn ended(core: &mut Core, id: &Identity, name: &str) {
    core.cx.event(Event::View { by: id.clone(), view: ViewUpdate::new(name, Value::nil()) });
}

/// Sends a client a state, `again` under its stanza. One that does not take byte streams gets only states that fit a packet.
fn post(core: &mut Core, id: &Identity, latest: &ViewUpdate, again: Option<i32>) -> Progress {
    let acknowledges = core.peers.get(id).is_some_and(|remote| remote.lists(Feature::Ack));
    let purpose = acknowledges.then_some(Purpose::View);
    match core.to(id).post_again(again, &Meta::default(), &Message::ViewUpdate(latest.clone()), purpose) {
        Ok(sent) if acknowledges => Progress::Sent(sent.stanza),
        Ok(_) => Progress::Done,
        Err(error) => {
            if let Unfit::TooLarge { .. } = error {
                core.cx.count(Counter::ReportRefused);
            }
            tracing::warn!(%id, ?error, "a view cannot be sent");
            Progress::Done
        }
    }
}

/// Builds the state of a view. One whose content is nil ends the view.
pub(super) fn update(view: &str, content: &Value, text: Option<String>) -> ViewUpdate {
    // All that clients see is made of what they may get (`wire.md`, section 3.3), so parts for the model
    // alone are removed.
    let mut update = ViewUpdate::new(view, stripped(content));
    update.text = text;
    update
}
