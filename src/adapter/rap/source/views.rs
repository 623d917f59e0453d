//! Shows the views of a toolset's tools.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde_json::{Map, Value as Json};

use super::reports::Reports;

/// The most views that one toolset shows at once: half of those that an assistant may show.
const MAX_VIEWS: usize = 8;

/// The views that are shown, each with the call that has shown it last.
#[derive(Default)]
pub(super) struct Views(Mutex<BTreeMap<String, Reports>>);

impl Views {
    /// Shows a view, or ends it if its content is empty. Returns whether the room got it.
    pub(super) fn show(&self, reports: Reports, view: String, content: &Json) -> bool {
        let mut views = self.shown();
        let is_end = content.as_object().is_some_and(Map::is_empty);
        if !views.contains_key(&view) && (is_end || views.len() >= MAX_VIEWS) {
            return false;
        }
        let is_shown = reports.view(&view, content);
        if is_end {
            views.remove(&view);
        } else if is_shown {
            views.insert(view, reports);
        }
        is_shown
    }

    /// Ends all views.
    pub(super) fn end(&self) {
        let views = std::mem::take(&mut *self.shown());
        for (view, reports) in views {
            reports.view(&view, &Json::Object(Map::new()));
        }
    }

    fn shown(&self) -> MutexGuard<'_, BTreeMap<String, Reports>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
