//! Runs child processes: programs that run once, and servers that run for long.
//!
//! A [`Command`] says what runs: the program, its arguments, its folder and its environment. No shell reads any of
//! it. [`Command::spawn`] starts a child whose streams stay open, such as a tool server that is called over its
//! standard input and output. [`ProgramTools`](crate::programs::ProgramTools) starts its programs from such commands,
//! too.
//!
//! Each child leads a process group. What it starts belongs to the same group, such as the server that `npx` runs.
//! Signals go to the group, so no process in it outlives the child: not when the child is closed, dropped or killed,
//! nor when this process panics. The exceptions:
//!
//! - A process that leaves the group (`setsid`, a daemon) is not followed.
//! - A process that is killed or that aborts cannot end its children. A [supervisor](Command::supervisor) does.
//!
//! The crate `process-wrap` is not used. It reaps the leader as soon as that ends, so a later signal to the group can
//! reach another group that was given the same id, and dropping its child kills the leader alone. Here the leader is
//! reaped last.
//!
//! Requires Unix and a tokio runtime with I/O and time enabled.
//!
//! ```
//! use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
//! use toolbridge::process::Command;
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let (child, mut stdin, stdout) = Command::from_line("cat -u")?.spawn()?;
//! stdin.write_all(b"ping\n").await?;
//! assert_eq!(BufReader::new(stdout).lines().next_line().await?.as_deref(), Some("ping"));
//! assert!(child.close().await?.status().success());
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

mod child;
mod command;
mod group;
pub(crate) mod supervise;
mod tail;
mod trust;

pub use child::{Child, Exit, Stdin};
pub use command::{Command, CommandError};
pub(crate) use group::Pipes;
pub(crate) use supervise::TERM_GRACE;
pub use tail::MAX_STDERR;
pub(crate) use tail::{end_of, keep_tail, shown_lines};
pub use trust::TrustError;
pub(crate) use trust::{check_program, read_trusted};
