//! A program and its children: one process group, which never outlives its call.

use std::{
    io,
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus},
    thread,
};

use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid},
};
use tokio::signal::unix::{self, SignalKind};

/// A running program that leads a process group. Dropping it kills and reaps them.
///
/// The leader is reaped last: as long as it is not, its number belongs to this group and to no other process,
/// so no signal of ours can hit a stranger.
#[derive(Debug)]
pub(super) struct Group {
    /// `None` once it is reaped.
    child: Option<Child>,
    id: Pid,
    child_ended: unix::Signal,
}

impl Group {
    /// Starts the command in a group of its own.
    pub(super) fn start(command: &mut Command) -> io::Result<Self> {
        // Listening comes first, or an early end would be missed.
        let child_ended = unix::signal(SignalKind::child())?;
        let child = command.process_group(0).spawn()?;
        Ok(Self { id: Pid::from_child(&child), child: Some(child), child_ended })
    }

    /// The process itself, for its pipes.
    pub(super) fn leader(&mut self) -> Option<&mut Child> {
        self.child.as_mut()
    }

    /// Resolves when the leader has ended. It is not reaped by this.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn ended(&mut self) {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        // An error means that somebody else reaped it: it has ended too.
        while let Ok(None) | Err(Errno::INTR) = waitid(WaitId::Pid(self.id), look) {
            if self.child_ended.recv().await.is_none() {
                return;
            }
        }
    }

    /// Asks the whole group to end.
    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Kills what is left of the group, and answers how its leader ended.
    pub(super) async fn kill(mut self) -> io::Result<ExitStatus> {
        self.signal(Signal::KILL);
        self.ended().await;
        match self.child.take() {
            Some(mut child) => child.wait(),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn signal(&self, signal: Signal) {
        if self.child.is_none() {
            return;
        }
        match kill_process_group(self.id, signal) {
            // Nobody is left; some systems say so with PERM while the leader waits to be reaped.
            Ok(()) | Err(Errno::SRCH | Errno::PERM) => {}
            Err(error) => {
                tracing::warn!(pid = self.id.as_raw_nonzero().get(), %error, "cannot signal a program")
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        if let Some(mut child) = self.child.take() {
            // A killed process ends at once, unless it hangs in the kernel, so that nobody may wait for it here.
            let reap = thread::Builder::new().name("reap".to_owned()).spawn(move || child.wait());
            if let Err(error) = reap {
                tracing::warn!(%error, "a program was killed but not reaped");
            }
        }
    }
}
