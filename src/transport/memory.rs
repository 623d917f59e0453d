//! A room inside the process.
