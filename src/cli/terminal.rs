//! Talks to a person at a terminal, and reads and writes files for them. Every other folder uses it.

pub(super) mod clock;
pub(super) mod failure;
pub(super) mod file;
pub(super) mod forms;
pub(super) mod interrupt;
pub(super) mod output;
pub(super) mod questions;
pub(super) mod render;
pub(super) mod screen;
pub(super) mod table;
pub(super) mod text;
