//! Runs the helper process that ends a program when the process that started it is killed.
//!
//! The client (the process that offers the tools) starts the helper as the leader of a new process group. The
//! helper's standard input is one end of a socket pair, and the client holds the other end. The first message on the
//! socket carries the program's standard streams. When the client dies for any reason, the kernel closes its end. The
//! helper then reads the end of the stream and ends the group.

use std::{
    env,
    ffi::OsString,
    fs::File,
    io::{self, IoSlice, IoSliceMut, Read as _, Write as _},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::{net::UnixStream, process::ExitStatusExt as _},
    },
    process::{Command, ExitCode, Stdio},
    thread,
    time::Duration,
};

use rustix::{
    cmsg_space,
    io::{Errno, FdFlags, fcntl_setfd},
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, recvmsg, sendmsg,
    },
    process::{Signal, getpgrp, getpid, kill_current_process_group},
};
use tokio::signal::unix::{SignalKind, signal};

/// The first argument of a helper; the program and its arguments follow.
pub const SUPERVISE: &str = "supervise";

/// The time between `SIGTERM` and `SIGKILL`.
pub(crate) const TERM_GRACE: Duration = Duration::from_secs(2);

/// The one byte of the message that carries the streams: the version of this protocol.
const VERSION: u8 = 1;

/// A program's stdin, stdout and stderr.
const STREAMS: usize = 3;

/// The status of a helper that was not started by [`ProgramTools`](crate::programs::ProgramTools).
const USAGE: u8 = 2;

/// What a helper writes to its standard output, as a byte and a number of four bytes (little endian).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HelperReport {
    /// The program could not be started: the system's error number.
    NotStarted(i32),
    /// The program ended with this status, as `wait` returns it.
    Ended(i32),
}

impl HelperReport {
    /// The length of a report in bytes.
    pub(crate) const LENGTH: usize = 5;

    fn to_bytes(self) -> [u8; Self::LENGTH] {
        let (kind, number) = match self {
            Self::NotStarted(error) => (1, error),
            Self::Ended(status) => (2, status),
        };
        let [a, b, c, d] = number.to_le_bytes();
        [kind, a, b, c, d]
    }

    /// Reads the report at the start of the bytes.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let [kind, a, b, c, d] = *bytes.first_chunk::<{ Self::LENGTH }>()?;
        let number = i32::from_le_bytes([a, b, c, d]);
        match kind {
            1 => Some(Self::NotStarted(number)),
            2 => Some(Self::Ended(number)),
            _ => None,
        }
    }
}

/// Sends the program's streams over the socket. The helper may not be running yet.
pub(crate) fn send_streams(to: &UnixStream, streams: [BorrowedFd<'_>; STREAMS]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(STREAMS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&streams)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(to, &[IoSlice::new(&[VERSION])], &mut control, SendFlags::empty())?;
    Ok(())
}

fn receive_streams(from: &UnixStream) -> io::Result<[OwnedFd; STREAMS]> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(STREAMS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut version = [0];
    let read = recvmsg(from, &mut [IoSliceMut::new(&mut version)], &mut control, RecvFlags::empty())?;
    let mut streams = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            streams.extend(files);
        }
    }
    for stream in &streams {
        // The program gets each of them once, as its standard streams.
        fcntl_setfd(stream, FdFlags::CLOEXEC)?;
    }
    match <[OwnedFd; STREAMS]>::try_from(streams) {
        Ok(streams) if read.bytes == 1 && version == [VERSION] => Ok(streams),
        _ => Err(io::Error::other("the client has another version")),
    }
}

/// The `main` of a helper binary for [`ProgramTools::supervisor`](crate::programs::ProgramTools::supervisor): starts the
/// program that the arguments name, and ends its process group when the client process has died.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     toolbridge::programs::supervise()
/// }
/// ```
///
/// The command line tool `toolbridge` is such a helper. Only `ProgramTools` can start helpers; a helper started
/// otherwise prints an error and exits with status 2.
pub fn supervise() -> ExitCode {
    let mut arguments = env::args_os().skip(1);
    let program = arguments.next().filter(|verb| verb == SUPERVISE).and_then(|_| arguments.next());
    let prepared = program.ok_or_else(|| "no program given".to_owned()).and_then(|program| {
        let (client, streams) = prepare().map_err(|error| error.to_string())?;
        Ok((program, client, streams))
    });
    match prepared {
        Ok((program, client, streams)) => run(&program, arguments, client, streams),
        Err(reason) => {
            let text = format!("toolbridge: `{SUPERVISE}` can only be started by `ProgramTools`: {reason}");
            let _ = writeln!(io::stderr(), "{text}");
            ExitCode::from(USAGE)
        }
    }
}

/// Reads the socket to the client and the program's streams.
fn prepare() -> io::Result<(UnixStream, [OwnedFd; STREAMS])> {
    // Signals go to the whole group, so the helper needs a group of its own.
    if getpgrp() != getpid() {
        return Err(io::Error::other("the helper does not lead a process group"));
    }
    let client = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let streams = receive_streams(&client)?;
    Ok((client, streams))
}

fn run(
    program: &OsString,
    arguments: impl Iterator<Item = OsString>,
    client: UnixStream,
    [stdin, stdout, stderr]: [OwnedFd; STREAMS],
) -> ExitCode {
    let started = stay_alive().and_then(|signals| {
        let watch = thread::Builder::new().spawn(move || end_with(client))?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(stdin).stdout(stdout).stderr(Stdio::from(stderr));
        // The streams are dropped with the command: they end when the program and its children have closed them.
        Ok((signals, watch, command.spawn()?))
    });
    let (_signals, watch, mut child) = match started {
        Ok(started) => started,
        Err(error) => {
            report(HelperReport::NotStarted(error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error())));
            return ExitCode::FAILURE;
        }
    };
    if let Ok(status) = child.wait() {
        report(HelperReport::Ended(status.into_raw()));
    }
    // Children of the program may still run. They end when the client ends the group or dies.
    let _ = watch.join();
    ExitCode::SUCCESS
}

/// Keeps this process alive when the group gets a signal, which is how the client ends the program. The program does
/// not inherit handlers, while it would inherit ignored signals.
fn stay_alive() -> io::Result<impl Sized> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let handlers = {
        let _context = runtime.enter();
        let kinds = [
            SignalKind::terminate(),
            SignalKind::interrupt(),
            SignalKind::hangup(),
            SignalKind::quit(),
            SignalKind::user_defined1(),
            SignalKind::user_defined2(),
            SignalKind::alarm(),
        ];
        kinds.map(signal).into_iter().collect::<io::Result<Vec<_>>>()?
    };
    Ok((runtime, handlers))
}

/// Waits for the client's end, then ends the group, including this process.
fn end_with(mut client: UnixStream) {
    loop {
        match client.read(&mut [0]) {
            Ok(0) => break,
            Err(error) if error.kind() != io::ErrorKind::Interrupted => break,
            _ => {}
        }
    }
    let _ = kill_current_process_group(Signal::TERM);
    thread::sleep(TERM_GRACE);
    let _ = kill_current_process_group(Signal::KILL);
}

/// Reports to the client. If the client is gone, no one needs the report.
fn report(report: HelperReport) {
    if let Ok(stdout) = io::stdout().as_fd().try_clone_to_owned() {
        let _ = File::from(stdout).write_all(&report.to_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streams() -> [OwnedFd; STREAMS] {
        std::array::from_fn(|_| io::pipe().unwrap().0.into())
    }

    #[test]
    fn helper_gets_its_streams_once_and_does_not_pass_them_on() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let sent = streams();
        send_streams(&ours, sent.each_ref().map(|it| it.as_fd())).unwrap();
        for stream in receive_streams(&theirs).unwrap() {
            assert!(rustix::io::fcntl_getfd(stream).unwrap().contains(FdFlags::CLOEXEC));
        }
    }

    #[test]
    fn message_of_another_version_or_without_streams_is_refused() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(&[VERSION]).unwrap();
        assert!(receive_streams(&theirs).is_err(), "there are no streams");
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(STREAMS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let sent = streams();
        let borrowed = sent.each_ref().map(|it| it.as_fd());
        assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
        sendmsg(&ours, &[IoSlice::new(&[VERSION + 1])], &mut control, SendFlags::empty()).unwrap();
        assert!(receive_streams(&theirs).is_err(), "it has another version");
    }

    #[test]
    fn report_of_an_unknown_kind_is_none() {
        for report in [HelperReport::NotStarted(2), HelperReport::Ended(256)] {
            assert_eq!(HelperReport::read(&report.to_bytes()), Some(report));
        }
        assert_eq!(HelperReport::read(&[3, 0, 0, 0, 0]), None);
        assert_eq!(HelperReport::read(&[2, 0, 0, 0]), None);
    }
}
