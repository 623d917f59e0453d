//! Checks the views of a recording: who shows them, and how many of which size.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::MAX_REMEMBERED;
use crate::{protocol::frame::ViewUpdate, transport::Identity};

/// What is known of the participants that show views.
#[derive(Debug, Default)]
pub(super) struct ShownViews {
    /// The participants whose role says that they are no assistant.
    others: HashSet<Identity>,
    /// The views of each participant that have content.
    shown: HashMap<Identity, BTreeSet<String>>,
}

/// A rule that a view breaks.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// A participant shows it that is no assistant.
    Sender,
    /// It exceeds this limit, as described.
    Limit(String),
}

impl ShownViews {
    /// Notes a participant that has joined, or whose role has changed.
    pub(super) fn joined(&mut self, who: &Identity, role: Option<&str>) {
        let is_other = matches!(role, Some("client" | "observer" | "hidden"));
        if is_other && self.others.len() < MAX_REMEMBERED {
            self.others.insert(who.clone());
        } else {
            self.others.remove(who);
        }
    }

    /// Forgets the views of a participant that has left.
    pub(super) fn left(&mut self, who: &Identity) {
        self.shown.remove(who);
    }

    /// Forgets all views, because the end of one may have been missed.
    pub(super) fn forget(&mut self) {
        self.shown.clear();
    }

    /// Judges a state of a view.
    pub(super) fn judge(&mut self, who: &Identity, view: &ViewUpdate) -> Option<Broken> {
        if self.others.contains(who) {
            return Some(Broken::Sender);
        }
        let (length, size) = (view.view.len(), view.size());
        if !(1..=ViewUpdate::MAX_NAME).contains(&length) {
            let limit = ViewUpdate::MAX_NAME;
            return Some(Broken::Limit(format!(
                "a view's name has {length} bytes; 1 to {limit} are allowed"
            )));
        }
        if size > ViewUpdate::MAX_SIZE {
            let limit = ViewUpdate::MAX_SIZE;
            return Some(Broken::Limit(format!(
                "view {:?} has {size} bytes; the limit is {limit}",
                view.view
            )));
        }
        if view.content.is_nil() {
            if let Some(shown) = self.shown.get_mut(who) {
                shown.remove(&view.view);
            }
            return None;
        }
        if self.shown.len() >= MAX_REMEMBERED && !self.shown.contains_key(who) {
            return None;
        }
        let shown = self.shown.entry(who.clone()).or_default();
        if shown.len() >= ViewUpdate::MAX_OPEN && !shown.contains(&view.view) {
            let (open, limit) = (shown.len() + 1, ViewUpdate::MAX_OPEN);
            return Some(Broken::Limit(format!(
                "view {:?} is number {open}; the limit is {limit}",
                view.view
            )));
        }
        shown.insert(view.view.clone());
        None
    }
}
