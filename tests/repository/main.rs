//! The repository itself: its pages, the layers of its modules, and its lists of tests.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "tests own their clock and may fail"
)]

mod checklists;
mod guide;
mod layers;
mod pages;
