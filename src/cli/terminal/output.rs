//! Standard output and standard error of a program in a room. A thread writes them, because a terminal that is not read
//! (Ctrl-S) or a full pipe blocks whoever writes, and the room runs in the thread of the program.
//!
//! Both are one queue, which keeps their order. A text that finds it empty waits a moment until it is written, so that
//! what the program prints in another way comes after it. Above [`MAX_WAITING`] bytes further lines are left out and counted.

use std::{
    collections::VecDeque,
    io::{self, Write},
    sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// The maximum number of bytes that wait to be written, apart from the last text: a person scrolls back less.
const MAX_WAITING: usize = 1024 * 1024;
/// How long the end of the program waits for a reader that takes nothing.
const STALLED: Duration = Duration::from_secs(2);

/// How long a text that finds the queue empty waits until it is written.
const MOMENT: Duration = Duration::from_millis(20);

/// Prints a line on standard output.
///
/// # Errors
/// Standard output failed, at this line or at an earlier one.
pub(in crate::cli) fn print(line: &str) -> io::Result<()> {
    SHARED.push(Stream::Out, format!("{line}\n").as_bytes())
}

/// Returns standard error, whose write errors are ignored.
pub(in crate::cli) fn stderr() -> Output {
    Output { queue: SHARED.clone(), stream: Stream::Error }
}

/// Waits until all is written, unless nobody reads.
pub(in crate::cli) fn finish() {
    SHARED.finish(STALLED);
}

/// One of the two outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    Out,
    Error,
}

/// A writer that never blocks. Each write is one text: it is left out as a whole, or written as a whole.
pub(in crate::cli) struct Output {
    queue: Arc<Queue>,
    stream: Stream,
}

static SHARED: LazyLock<Arc<Queue>> = LazyLock::new(|| {
    Queue::start(|stream, text| match stream {
        Stream::Out => io::stdout().write_all(text).and_then(|()| io::stdout().flush()),
        Stream::Error => io::stderr().write_all(text),
    })
});

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(Stream, Vec<u8>)>,
    /// The bytes that wait.
    bytes: usize,
    /// The lines that were left out.
    left_out: usize,
    /// Whether a text is being written.
    writing: bool,
    /// The number of written texts.
    written: u64,
    /// Why standard output failed.
    failed: Option<io::ErrorKind>,
}

impl Queue {
    /// Starts the thread. If it cannot start, nothing is written, as if nobody read.
    fn start(write: impl FnMut(Stream, &[u8]) -> io::Result<()> + Send + 'static) -> Arc<Self> {
        let queue = Arc::new(Self::default());
        let of_thread = queue.clone();
        // Without a thread there is no program either: it has others to start.
        let _ = thread::Builder::new().name("terminal".to_owned()).spawn(move || of_thread.run(write));
        queue
    }

    fn run(&self, mut write: impl FnMut(Stream, &[u8]) -> io::Result<()>) {
        let mut state = self.lock();
        loop {
            let Some((stream, text)) = state.next() else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.writing = true;
            drop(state);
            let result = write(stream, &text);
            state = self.lock();
            state.writing = false;
            state.written += 1;
            if let (Err(error), Stream::Out) = (result, stream) {
                state.failed = Some(error.kind());
            }
            self.changed.notify_all();
        }
    }

    fn push(&self, stream: Stream, text: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        if let (Some(kind), Stream::Out) = (state.failed, stream) {
            return Err(kind.into());
        }
        if state.bytes > MAX_WAITING {
            state.left_out += text.iter().filter(|byte| **byte == b'\n').count();
            return Ok(());
        }
        let is_idle = state.waiting.is_empty() && !state.writing;
        let written = state.written;
        state.bytes += text.len();
        state.waiting.push_back((stream, text.to_vec()));
        self.changed.notify_all();
        if is_idle {
            let is_unwritten = |state: &mut State| state.written == written;
            let waited = self.changed.wait_timeout_while(state, MOMENT, is_unwritten);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        match (state.failed, stream) {
            (Some(kind), Stream::Out) => Err(kind.into()),
            _ => Ok(()),
        }
    }

    /// Waits until all is written, or nothing was for this time.
    fn finish(&self, stalled: Duration) {
        let mut state = self.lock();
        while state.writing || !state.waiting.is_empty() || state.left_out > 0 {
            let before = state.written;
            let (after, waited) =
                self.changed.wait_timeout(state, stalled).unwrap_or_else(PoisonError::into_inner);
            state = after;
            if waited.timed_out() && state.written == before {
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes the next text. After the last one it is the number of the lines that were left out.
    fn next(&mut self) -> Option<(Stream, Vec<u8>)> {
        if let Some((stream, text)) = self.waiting.pop_front() {
            self.bytes -= text.len();
            return Some((stream, text));
        }
        let left_out = std::mem::take(&mut self.left_out);
        let line = || format!("{left_out} lines were left out here, because the output was not read\n");
        (left_out > 0).then(|| (Stream::Error, line().into_bytes()))
    }
}

impl Write for Output {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.queue.push(self.stream, text)?;
        Ok(text.len())
    }

    /// Returns at once: the thread flushes after each text.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A queue whose reader takes a text for each message of the returned sender.
    fn read_by_hand() -> (Arc<Queue>, mpsc::Sender<()>, mpsc::Receiver<(Stream, String)>) {
        let (take, wait) = mpsc::channel();
        let (read, seen) = mpsc::channel();
        let queue = Queue::start(move |stream, text| {
            wait.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
            let _ = read.send((stream, String::from_utf8_lossy(text).into_owned()));
            Ok(())
        });
        (queue, take, seen)
    }

    #[test]
    fn unread_output_blocks_nobody_and_says_what_was_left_out() {
        let (queue, take, seen) = read_by_hand();
        let mut out = Output { queue: queue.clone(), stream: Stream::Out };
        let line = format!("{}\n", "x".repeat(MAX_WAITING / 4));
        for _ in 0..20 {
            out.write_all(line.as_bytes()).unwrap();
        }
        queue.push(Stream::Error, b"lost\n").unwrap();
        let waiting = queue.lock().waiting.len();
        assert!((4..=6).contains(&waiting), "{waiting}");
        queue.finish(Duration::ZERO);
        for _ in 0..20 {
            take.send(()).unwrap();
        }
        queue.finish(STALLED);
        let seen: Vec<_> = seen.try_iter().collect();
        let [lines @ .., (Stream::Error, last)] = &seen[..] else { panic!("{}", seen.len()) };
        let left_out = 21 - lines.len();
        assert_eq!(*last, format!("{left_out} lines were left out here, because the output was not read\n"));
        queue.push(Stream::Error, b"again\n").unwrap();
        take.send(()).unwrap();
        queue.finish(STALLED);
        assert_eq!(queue.lock().bytes, 0);
    }

    #[test]
    fn both_outputs_keep_their_order() {
        let (queue, take, seen) = read_by_hand();
        for (stream, text) in [(Stream::Out, "1"), (Stream::Error, "2"), (Stream::Out, "3")] {
            queue.push(stream, text.as_bytes()).unwrap();
            take.send(()).unwrap();
        }
        queue.finish(STALLED);
        let texts: Vec<_> = seen.try_iter().map(|(_, text)| text).collect();
        assert_eq!(texts, ["1", "2", "3"]);
    }

    #[test]
    fn closed_standard_output_is_an_error_and_standard_error_is_not() {
        let (queue, take, _seen) = read_by_hand();
        drop(take);
        queue.push(Stream::Error, b"x").unwrap();
        queue.finish(STALLED);
        let _ = queue.push(Stream::Out, b"x");
        queue.finish(STALLED);
        let error = queue.push(Stream::Out, b"x").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        queue.push(Stream::Error, b"x").unwrap();
    }
}
