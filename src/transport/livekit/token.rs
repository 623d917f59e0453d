//! Access tokens: made, read, and renewed.

pub(crate) mod access_token;
pub(crate) mod tokens;
