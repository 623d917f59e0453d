//! What the runs drive. The test that records runs for the bindings (`bindings/face/tests/traces`) has types with the same
//! methods in its place.

pub(crate) use toolbridge::{Config, session::Session};
