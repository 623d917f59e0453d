//! Makes, reads and renews access tokens.

pub(crate) mod access_token;
pub(crate) mod signed;
pub(crate) mod tokens;
