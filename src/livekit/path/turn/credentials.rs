//! Holds the credentials for a relay.

use std::fmt;

/// The longest user name (14.3) and password, in bytes.
const MAX_CREDENTIAL: usize = 512;

/// The user name and password for a relay.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(super) username: String,
    pub(super) password: String,
}

impl Credentials {
    /// Returns `None` if they are longer than TURN allows.
    pub(crate) fn new(username: &str, password: &str) -> Option<Self> {
        let fits = username.len() <= MAX_CREDENTIAL && password.len() <= MAX_CREDENTIAL;
        fits.then(|| Self { username: username.to_owned(), password: password.to_owned() })
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}
