//! Sends and observes views: what an assistant shows to its clients and replaces from time to time
//! (`wire.md`, section 4.15).

use std::{collections::VecDeque, time::Duration};

use super::{
    Context, Counter, Event, QUEUE_WAIT, SendFailure,
    core::Core,
    delivery::{Delivery, Unfit},
    peers::Peers,
    recipients::{Feature, Recipients as _},
    timers::Timer,
};
use crate::{
    clock::Instant,
    protocol::frame::{Message, Meta, ViewUpdate},
    tool::{ReportError, public::stripped},
    transport::Identity,
    value::Value,
};

/// The most views of one assistant.
const MAX_VIEWS: usize = ViewUpdate::MAX_OPEN;

/// The latest state of each view.
#[derive(Debug, Default)]
pub(super) struct Views {
    /// At most [`MAX_VIEWS`] views, of which some have ended. The place of a view is its timer's.
    shown: Vec<View>,
    /// Client: the views that the bound assistant shows, at most [`MAX_VIEWS`], that with the oldest state first.
    seen: VecDeque<String>,
}

#[derive(Debug)]
struct View {
    latest: ViewUpdate,
    /// When the last state was sent.
    at: Option<Instant>,
    /// Whether the latest state has not been sent.
    is_due: bool,
    /// The packet with the last state that was sent.
    packet: Option<u64>,
}

impl View {
    /// Returns whether its place may be used by another view.
    fn is_free(&self) -> bool {
        self.latest.content.is_nil() && !self.is_due
    }
}

impl Views {
    /// Replaces the state of a view, and sends it unless the last one was sent a moment ago.
    pub(super) fn show(
        &mut self,
        cx: &mut Context,
        peers: &Peers,
        delivery: &mut Delivery,
        latest: ViewUpdate,
    ) -> Result<(), ReportError> {
        if cx.is_client() {
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
        let place = self.place(&latest)?;
        let Some(view) = self.shown.get_mut(place) else { return Ok(()) }; // a view ends that was never shown
        view.latest = latest;
        let interval = Duration::from_secs(1) / cx.config.caps.requests.progress_per_second.max(1);
        match view.at.map(|at| cx.now.saturating_duration_since(at)) {
            Some(since) if since < interval => {
                // The state that waited is dropped, not queued: a view is replaced as a whole, so only the
                // last state counts.
                if std::mem::replace(&mut view.is_due, true) {
                    cx.count(Counter::ProgressDropped);
                } else {
                    cx.set_timer(Timer::View(place), interval - since);
                }
            }
            _ => self.send(cx, peers, delivery, place),
        }
        Ok(())
    }

    /// Sends the latest state of a view to all clients.
    pub(super) fn send(&mut self, cx: &mut Context, peers: &Peers, delivery: &mut Delivery, place: usize) {
        let Some(view) = self.shown.get_mut(place) else { return };
        if std::mem::take(&mut view.is_due) {
            cx.timers.cancel(&Timer::View(place));
        }
        view.at = Some(cx.now);
        let message = Message::ViewUpdate(view.latest.clone());
        let to = peers.present().map(|(id, _)| id.clone()).collect();
        view.packet = post(cx, peers, delivery, to, &message);
        delivery.copy(cx, peers, &Meta::default(), &message);
    }

    /// Handles a packet that was not sent. If it had the latest state of a view, this is sent again when the transport may
    /// have room, or the connection is back. Returns false for other packets.
    pub(super) fn unsent(&mut self, cx: &mut Context, packet: u64, why: &SendFailure) -> bool {
        let Some(place) = self.shown.iter().position(|view| view.packet == Some(packet)) else {
            return false;
        };
        self.shown[place].packet = None;
        match why {
            SendFailure::TooLarge { .. } | SendFailure::NotAllowed => {}
            SendFailure::Interrupted => self.shown[place].is_due = true,
            SendFailure::QueueFull | SendFailure::Closed | SendFailure::Other(_) => {
                self.shown[place].is_due = true;
                cx.set_timer(Timer::View(place), QUEUE_WAIT);
            }
        }
        true
    }

    /// Sends the states that wait: they came too soon after others, or were not sent.
    pub(super) fn send_due(&mut self, cx: &mut Context, peers: &Peers, delivery: &mut Delivery) {
        for place in 0..self.shown.len() {
            if self.shown[place].is_due {
                self.send(cx, peers, delivery, place);
            }
        }
    }

    /// Sends all views to a client whose Configuration has arrived. One that has returned may not have heard that a view
    /// ended, so it gets the ends too.
    pub(super) fn send_all_to(
        &self,
        cx: &mut Context,
        peers: &Peers,
        delivery: &mut Delivery,
        id: &Identity,
        has_returned: bool,
    ) {
        for view in self.shown.iter().filter(|view| has_returned || !view.latest.content.is_nil()) {
            post(cx, peers, delivery, vec![id.clone()], &Message::ViewUpdate(view.latest.clone()));
        }
    }

    /// Client: reports the state of a view as the assistant sent it, unless it exceeds the limits. One view too many ends
    /// the one with the oldest state, whose end may have been lost.
    pub(super) fn observe(&mut self, core: &mut Core, id: &Identity, view: ViewUpdate) {
        if view.view.is_empty()
            || view.view.len() > ViewUpdate::MAX_NAME
            || view.size() > ViewUpdate::MAX_SIZE
        {
            return core.cx.complain(id, Counter::Malformed);
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

    /// Returns the place of a view, which is beyond the end for a view that ends and is not shown.
    fn place(&mut self, latest: &ViewUpdate) -> Result<usize, ReportError> {
        if let Some(place) = self.shown.iter().position(|view| view.latest.view == latest.view) {
            return Ok(place);
        }
        if latest.content.is_nil() {
            return Ok(MAX_VIEWS);
        }
        let view = View { latest: latest.clone(), at: None, is_due: false, packet: None };
        if self.shown.len() < MAX_VIEWS {
            self.shown.push(view);
            return Ok(self.shown.len() - 1);
        }
        let free = self.shown.iter().enumerate().filter(|(_, it)| it.is_free());
        // The view that ended first: a client that returns must still hear of the end of the others.
        let Some(place) = free.min_by_key(|(_, it)| it.at).map(|(place, _)| place) else {
            return Err(ReportError::TooMany { open: MAX_VIEWS, limit: MAX_VIEWS });
        };
        self.shown[place] = view;
        Ok(place)
    }
}

/// Client: reports that a view has ended.
fn ended(core: &mut Core, id: &Identity, name: &str) {
    core.cx.event(Event::View { by: id.clone(), view: ViewUpdate::new(name, Value::nil()) });
}

/// Sends a state to those that list views, and returns the id of its packet. Clients without byte streams get only states that
/// fit a packet.
fn post(
    cx: &mut Context,
    peers: &Peers,
    delivery: &mut Delivery,
    mut to: Vec<Identity>,
    message: &Message,
) -> Option<u64> {
    to.retain(|id| peers.lists(id, Feature::View) && peers.is_reachable(id));
    if to.is_empty() {
        return None;
    }
    let mut sent = delivery.post_to(cx, peers, to.clone(), &Meta::default(), message).map(Some);
    if let Err(Unfit::TooLarge { .. }) = sent {
        // One frame went to all of them, so one client without byte streams kept the state from all others.
        to.retain(|id| peers.takes_large_frames(id));
        cx.count(Counter::ReportRefused);
        sent = match to.is_empty() {
            true => Ok(None),
            false => delivery.post_to(cx, peers, to, &Meta::default(), message).map(Some),
        };
    }
    sent.unwrap_or_else(|error| {
        tracing::warn!(?error, "a view cannot be sent");
        None
    })
}

/// Builds the state of a view. One whose content is nil ends the view.
pub(super) fn update(view: &str, content: &Value, text: Option<String>) -> ViewUpdate {
    // All that clients see is made of what they may get (`wire.md`, section 3.3), so parts for the model
    // alone are removed.
    let mut update = ViewUpdate::new(view, stripped(content));
    update.text = text;
    update
}
