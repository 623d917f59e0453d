//! Runs a program and its children in one process group, which never outlives its call.

use std::{
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{
            net::UnixStream,
            process::{CommandExt, ExitStatusExt as _},
        },
    },
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    thread,
};

use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid},
};
use tokio::{
    io::AsyncReadExt as _,
    process,
    signal::unix::{self, SignalKind},
};

use super::supervise::{HelperReport, send_streams};

/// A running program and its process group. Dropping it kills and reaps them.
///
/// The group's leader is the program, or its supervisor. The leader is reaped last: until then its process id belongs
/// to this group and to no other process, so no signal can reach an unrelated process.
#[derive(Debug)]
pub(crate) struct Group {
    /// `None` once it is reaped.
    leader: Option<Child>,
    id: Pid,
    child_ended: unix::Signal,
    supervised: Option<Supervised>,
}

/// The parent's ends of the program's pipes.
#[derive(Debug)]
pub(crate) struct Pipes {
    pub(crate) stdin: ChildStdin,
    pub(crate) stdout: ChildStdout,
    pub(crate) stderr: ChildStderr,
}

/// The connection to a supervisor that has started a program.
#[derive(Debug)]
struct Supervised {
    /// The supervisor ends the group when this is closed.
    _lifeline: UnixStream,
    reports: process::ChildStdout,
    /// Bytes of an incomplete report.
    heard: Vec<u8>,
    end: Option<End>,
}

/// How the program ended.
#[derive(Clone, Copy, Debug)]
enum End {
    NotStarted(i32),
    Ended(i32),
    /// The supervisor ended first.
    Unknown,
    /// The binary is not a supervisor: it wrote something else.
    Garbage,
}

impl Group {
    /// Starts the command in a new process group.
    pub(crate) fn start(mut command: Command) -> io::Result<(Self, Pipes)> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut group = Self::lead(command)?;
        let leader = group.leader.as_mut();
        let pipes = leader.and_then(|it| {
            Some(Pipes { stdin: it.stdin.take()?, stdout: it.stdout.take()?, stderr: it.stderr.take()? })
        });
        Ok((group, pipes.ok_or(io::ErrorKind::BrokenPipe)?))
    }

    /// Starts a supervisor in a new process group; the supervisor starts its program in the same group.
    pub(crate) fn start_supervised(mut command: Command) -> io::Result<(Self, Pipes)> {
        let (stdin, ours_in) = io::pipe()?;
        let (ours_out, stdout) = io::pipe()?;
        let (ours_err, stderr) = io::pipe()?;
        let (lifeline, theirs) = UnixStream::pair()?;
        send_streams(&lifeline, [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()])?;
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut group = Self::lead(command)?;
        let reports = group.leader.as_mut().and_then(|leader| leader.stdout.take());
        group.supervised = Some(Supervised {
            _lifeline: lifeline,
            reports: process::ChildStdout::from_std(reports.ok_or(io::ErrorKind::BrokenPipe)?)?,
            heard: Vec::new(),
            end: None,
        });
        let pipes = Pipes {
            stdin: OwnedFd::from(ours_in).into(),
            stdout: OwnedFd::from(ours_out).into(),
            stderr: OwnedFd::from(ours_err).into(),
        };
        Ok((group, pipes))
    }

    fn lead(mut command: Command) -> io::Result<Self> {
        // The signal handler is installed first, or an early exit would be missed.
        let child_ended = unix::signal(SignalKind::child())?;
        let leader = command.process_group(0).spawn()?;
        Ok(Self { id: Pid::from_child(&leader), leader: Some(leader), child_ended, supervised: None })
    }

    /// Resolves when the program has ended. This does not reap the group's leader.
    ///
    /// # Cancel safety
    /// Safe.
    pub(crate) async fn ended(&mut self) {
        match &mut self.supervised {
            Some(supervised) => supervised.ended().await,
            None => self.leader_ended().await,
        }
    }

    /// Resolves when the group's leader has ended.
    async fn leader_ended(&mut self) {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        // An error means that other code has reaped it, so it has ended too.
        while let Ok(None) | Err(Errno::INTR) = waitid(WaitId::Pid(self.id), look) {
            if self.child_ended.recv().await.is_none() {
                return;
            }
        }
    }

    /// Sends `SIGTERM` to the whole group.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Kills the rest of the group, and returns how the program ended. May be called once.
    ///
    /// # Cancel safety
    /// Safe: it may then be called again.
    ///
    /// # Errors
    /// The program could not be started, or the operating system does not report how it ended.
    pub(crate) async fn kill(&mut self) -> io::Result<ExitStatus> {
        self.signal(Signal::KILL);
        self.leader_ended().await;
        let Some(mut leader) = self.leader.take() else { return Err(io::ErrorKind::NotFound.into()) };
        let status = leader.wait()?;
        match &self.supervised {
            None => Ok(status),
            Some(Supervised { end: Some(End::Ended(status)), .. }) => Ok(ExitStatus::from_raw(*status)),
            Some(Supervised { end: Some(End::NotStarted(error)), .. }) => {
                Err(io::Error::from_raw_os_error(*error))
            }
            // The supervisor was killed together with the program, now or earlier.
            Some(Supervised { end: None | Some(End::Unknown), .. }) if status.signal().is_some() => {
                Ok(status)
            }
            Some(_) => {
                Err(io::Error::other(format!("the supervisor ended before it started the program: {status}")))
            }
        }
    }

    fn signal(&self, signal: Signal) {
        if self.leader.is_none() {
            return;
        }
        match kill_process_group(self.id, signal) {
            // The group is empty; some systems report this as EPERM while the leader waits to be reaped.
            Ok(()) | Err(Errno::SRCH | Errno::PERM) => {}
            Err(error) => {
                tracing::warn!(pid = self.id.as_raw_nonzero().get(), %error, "cannot signal a program")
            }
        }
    }
}

impl Supervised {
    /// Resolves when the program or its supervisor has ended.
    ///
    /// # Cancel safety
    /// Safe: bytes that were read are kept.
    async fn ended(&mut self) {
        while self.end.is_none() {
            if let Some(report) = HelperReport::read(&self.heard) {
                self.heard.drain(..HelperReport::LENGTH);
                self.end = Some(match report {
                    HelperReport::NotStarted(error) => End::NotStarted(error),
                    HelperReport::Ended(status) => End::Ended(status),
                });
            } else if self.heard.len() >= HelperReport::LENGTH {
                self.end = Some(End::Garbage);
            } else if !matches!(self.reports.read_buf(&mut self.heard).await, Ok(bytes) if bytes > 0) {
                self.end = Some(End::Unknown);
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        if let Some(mut child) = self.leader.take() {
            // A killed process ends at once, unless it hangs in the kernel; waiting here could block.
            let reap = thread::Builder::new().name("reap".to_owned()).spawn(move || child.wait());
            if let Err(error) = reap {
                tracing::warn!(%error, "a program was killed but not reaped");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Read as _, time::Duration};

    use tokio::time::timeout;

    use rustix::process::{getpgid, test_kill_process};

    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(script);
        command
    }

    /// Reads the line that a script writes first: a process id.
    fn pid(pipes: &mut Pipes) -> Pid {
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let mut byte = [0];
            pipes.stdout.read_exact(&mut byte).unwrap();
            line.extend(byte);
        }
        Pid::from_raw(str::from_utf8(&line).unwrap().trim().parse().unwrap()).unwrap()
    }

    /// The longest time that is waited for the end of a process. It takes milliseconds.
    const PATIENCE: Duration = Duration::from_secs(30);

    /// Resolves when a process has ended.
    async fn gone(pid: Pid) {
        let ending = async {
            while test_kill_process(pid).is_ok() && !is_zombie(pid) {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, ending).await.expect("the process goes on");
    }

    /// The process may be a child of a process that reaps nothing.
    fn is_zombie(pid: Pid) -> bool {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('Z'))
    }

    #[tokio::test]
    async fn sec_x2_dropped_group_is_killed_with_its_children() {
        let (group, mut pipes) = Group::start(sh("sleep 1000 & echo $!; wait")).unwrap();
        let (leader, child) = (group.id, pid(&mut pipes));
        drop(group);
        gone(child).await;
        gone(leader).await;
    }

    #[tokio::test]
    async fn sec_x2_program_leads_a_group_of_its_own() {
        let (group, mut pipes) = Group::start(sh("sleep 1000 & echo $!; wait")).unwrap();
        let child = pid(&mut pipes);
        let _ = &group;
        assert_eq!(getpgid(Some(child)), Ok(group.id));
    }

    #[tokio::test]
    async fn sec_x2_ended_program_takes_its_children_along() {
        let (mut group, mut pipes) = Group::start(sh("sleep 1000 & echo $!; exit 7")).unwrap();
        let child = pid(&mut pipes);
        group.ended().await;
        assert_eq!(group.kill().await.unwrap().code(), Some(7));
        gone(child).await;
        // No signal reaches a process that has got the id since.
        assert!(group.leader.is_none());
        assert!(group.kill().await.is_err());
    }

    #[tokio::test]
    async fn binary_that_is_no_supervisor_is_noticed() {
        let (mut group, _pipes) = Group::start_supervised(sh("echo hello; exec sleep 1000")).unwrap();
        timeout(PATIENCE, group.ended()).await.expect("it is taken for a supervisor");
        assert!(matches!(&group.supervised, Some(Supervised { end: Some(End::Garbage), .. })));
    }
}
