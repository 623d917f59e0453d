//! Runs a child for long: its standard input and output stay open, and its stderr is read all the time.

use std::{
    fmt,
    future::poll_fn,
    io, mem,
    os::fd::{AsFd as _, OwnedFd},
    pin::Pin,
    process::ExitStatus,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use rustix::io::read;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    process::{ChildStderr, ChildStdin, ChildStdout},
    task::JoinSet,
    time::timeout,
};

use super::{
    group::{Group, Pipes},
    supervise::TERM_GRACE,
    tail::keep_tail,
};

/// The time between the end of a child's input and `SIGTERM`.
const INPUT_GRACE: Duration = Duration::from_secs(2);

/// The read size, in bytes.
const CHUNK: usize = 16 << 10;

/// The most bytes that an unprivileged process can have in a pipe on Linux.
const MAX_PIPE: usize = 1 << 20;

/// A child that runs for long, and its process group. [`Command::spawn`](super::Command::spawn) starts it.
///
/// Dropping it kills the group (`SIGKILL`). [`close`](Self::close) ends it in an orderly way.
///
/// Its stderr is read from the first byte, so the child never waits for a reader. The last
/// [`MAX_STDERR`](super::MAX_STDERR) bytes are kept.
pub struct Child {
    group: Group,
    stdin: Arc<Mutex<Input>>,
    stderr: Stderr,
    exit: Option<Exit>,
}

impl Child {
    pub(super) fn new(group: Group, pipes: Pipes) -> io::Result<(Self, Stdin, ChildStdout)> {
        let input = Input { pipe: Some(ChildStdin::from_std(pipes.stdin)?), writer: None };
        let stdin = Stdin { input: Arc::new(Mutex::new(input)) };
        let stdout = ChildStdout::from_std(pipes.stdout)?;
        let stderr = Stderr::new(ChildStderr::from_std(pipes.stderr)?)?;
        Ok((Self { group, stdin: Arc::clone(&stdin.input), stderr, exit: None }, stdin, stdout))
    }

    /// Waits until the program has ended. Then kills what is left of its group, and closes its standard input.
    ///
    /// It resolves at once: other processes of the group get no time to end. What the program wrote before it ended
    /// can still be read from its standard output. Later calls return the same exit.
    ///
    /// # Errors
    /// The supervisor could not start the program, or the operating system does not report how the program ended.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn wait(&mut self) -> io::Result<Exit> {
        if self.exit.is_none() {
            self.group.ended().await;
        }
        self.reap().await
    }

    /// Ends the child: closes its standard input, sends `SIGTERM` to the group 2 s later, and `SIGKILL` after another
    /// 2 s.
    ///
    /// Each stage is left as soon as the program has ended and no process has its stderr open any longer. Closed
    /// streams are the only sign that no other process of the group is left, so one without stderr gets no time to
    /// end.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    ///
    /// # Cancel safety
    /// Dropping the future kills the group.
    pub async fn close(mut self) -> io::Result<Exit> {
        if self.exit.is_none() {
            close(&self.stdin);
            if timeout(INPUT_GRACE, self.all_ended()).await.is_err() {
                self.group.terminate();
                let _ = timeout(TERM_GRACE, self.all_ended()).await;
            }
        }
        self.reap().await
    }

    /// Ends a child that expects no input: sends `SIGTERM` to the group at once, and `SIGKILL` 2 s later.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    ///
    /// # Cancel safety
    /// Dropping the future kills the group.
    #[cfg(feature = "acp")]
    pub(crate) async fn terminate(mut self) -> io::Result<Exit> {
        if self.exit.is_none() {
            close(&self.stdin);
            self.group.terminate();
            let _ = timeout(TERM_GRACE, self.all_ended()).await;
        }
        self.reap().await
    }

    /// Returns the end of what the child has written to stderr so far, at most [`MAX_STDERR`](super::MAX_STDERR)
    /// bytes.
    pub fn stderr(&self) -> Vec<u8> {
        lock(&self.stderr.tail).clone()
    }

    /// Resolves when the program has ended and all processes have closed its stderr.
    async fn all_ended(&mut self) {
        tokio::join!(self.group.ended(), self.stderr.closed());
    }

    /// Kills what is left of the group, and returns how the program ended.
    async fn reap(&mut self) -> io::Result<Exit> {
        if let Some(exit) = &self.exit {
            return Ok(exit.clone());
        }
        let status = self.group.kill().await;
        close(&self.stdin);
        self.stderr.read_rest();
        let exit = Exit { status: status?, stderr: self.stderr().into() };
        tracing::debug!(status = %exit.status, stderr_bytes = exit.stderr.len(), "a child process ended");
        Ok(self.exit.insert(exit).clone())
    }
}

/// Without the text of stderr, which may hold secrets.
impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Child").field("exit", &self.exit).finish_non_exhaustive()
    }
}

/// How a child ended.
#[derive(Clone)]
pub struct Exit {
    status: ExitStatus,
    stderr: Arc<[u8]>,
}

impl Exit {
    /// Returns the program's status: its exit code, or the signal that ended it.
    pub fn status(&self) -> ExitStatus {
        self.status
    }

    /// Returns the end of what the child wrote to stderr, at most [`MAX_STDERR`](super::MAX_STDERR) bytes.
    pub fn stderr(&self) -> &[u8] {
        &self.stderr
    }
}

/// Without the text of stderr, which may hold secrets.
impl fmt::Debug for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exit").field("status", &self.status).finish_non_exhaustive()
    }
}

/// A child's standard input. It is closed when this is shut down or dropped, and when the [`Child`] is closed, dropped
/// or has ended; writing then fails with [`BrokenPipe`](io::ErrorKind::BrokenPipe).
#[derive(Debug)]
pub struct Stdin {
    input: Arc<Mutex<Input>>,
}

#[derive(Debug, Default)]
struct Input {
    /// `None` once it is closed.
    pipe: Option<ChildStdin>,
    /// The task that waits for room in the pipe.
    writer: Option<Waker>,
}

/// Closes the pipe. A task that waits for room in it is woken, after the lock is released.
fn close(input: &Mutex<Input>) {
    let closed = mem::take(&mut *lock(input));
    if let Some(writer) = closed.writer {
        writer.wake();
    }
}

impl AsyncWrite for Stdin {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut input = lock(&self.input);
        let Some(pipe) = &mut input.pipe else { return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())) };
        let written = Pin::new(pipe).poll_write(cx, bytes);
        input.writer = written.is_pending().then(|| cx.waker().clone());
        written
    }

    /// Does nothing: a pipe has no buffer in this process.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        close(&self.input);
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stdin {
    fn drop(&mut self) {
        close(&self.input);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        close(&self.stdin);
    }
}

/// A child's stderr, which a task reads.
struct Stderr {
    tail: Arc<Mutex<Vec<u8>>>,
    /// The pipe, once more: the task may not have been notified yet of the child's last bytes.
    pipe: OwnedFd,
    task: JoinSet<()>,
}

impl Stderr {
    fn new(mut stderr: ChildStderr) -> io::Result<Self> {
        let pipe = stderr.as_fd().try_clone_to_owned()?;
        let tail = Arc::new(Mutex::new(Vec::new()));
        let mut task = JoinSet::new();
        let theirs = Arc::clone(&tail);
        task.spawn(async move {
            let mut chunk = vec![0; CHUNK];
            poll_fn(|cx| read_all(Pin::new(&mut stderr), cx, &theirs, &mut chunk)).await;
        });
        Ok(Self { tail, pipe, task })
    }

    /// Resolves when all processes have closed the stream.
    async fn closed(&mut self) {
        self.task.join_next().await;
    }

    /// Reads what is in the pipe, without waiting for more. It is not more than a pipe can hold, also if a process
    /// outside the group goes on writing.
    fn read_rest(&self) {
        let mut tail = lock(&self.tail);
        let mut chunk = vec![0; CHUNK];
        for _ in 0..MAX_PIPE / CHUNK {
            match read(&self.pipe, &mut chunk) {
                Ok(bytes) if bytes > 0 => tail.extend_from_slice(&chunk[..bytes]),
                _ => break,
            }
        }
        keep_tail(&mut tail);
    }
}

/// Reads to the end of the stream. The tail is locked while a chunk is read, so that chunks keep their order.
fn read_all(
    mut stderr: Pin<&mut ChildStderr>,
    cx: &mut Context<'_>,
    tail: &Mutex<Vec<u8>>,
    chunk: &mut [u8],
) -> Poll<()> {
    loop {
        let mut tail = lock(tail);
        let mut buffer = ReadBuf::new(chunk);
        match ready!(stderr.as_mut().poll_read(cx, &mut buffer)) {
            Ok(()) if !buffer.filled().is_empty() => tail.extend_from_slice(buffer.filled()),
            _ => return Poll::Ready(()),
        }
        keep_tail(&mut tail);
    }
}

/// Locks. A panic elsewhere leaves these values usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
