//! Converts the common errors of std, serde_json and tokio, so that `?` works in a tool. Their texts stay in
//! this process.

use std::{char, env, error::Error, fmt, io, net, num, str, string, time};

use tokio::{sync, task};

use crate::tool::ToolError;

macro_rules! internal {
    ($($error:ty),* $(,)?) => {$(
        /// Converts it with [`ToolError::internal`].
        impl From<$error> for ToolError {
            fn from(error: $error) -> Self {
                Self::internal(error)
            }
        }
    )*};
}

internal! {
    Box<dyn Error + Send + Sync>,
    char::ParseCharError,
    env::VarError,
    fmt::Error,
    io::Error,
    net::AddrParseError,
    num::ParseFloatError,
    num::ParseIntError,
    num::TryFromIntError,
    serde_json::Error,
    str::ParseBoolError,
    str::Utf8Error,
    string::FromUtf8Error,
    sync::AcquireError,
    sync::oneshot::error::RecvError,
    sync::watch::error::RecvError,
    task::JoinError,
    time::SystemTimeError,
    tokio::time::error::Elapsed,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::ErrorCode;

    #[test]
    fn error_of_the_standard_library_is_not_sent() {
        let boxed: Box<dyn Error + Send + Sync> = "hunter2".into();
        for error in [io::Error::other("hunter2").into(), boxed.into(), fmt::Error.into()] {
            let error: ToolError = error;
            assert_eq!(
                (error.code(), error.message()),
                (ErrorCode::EXECUTION_ERROR, ToolError::LOCAL_MESSAGE)
            );
            assert!(error.source().is_some());
        }
    }
}
