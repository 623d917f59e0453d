//! Writes the output lines in a thread, so that a controlling program that does not read blocks nothing else.

use std::{
    io::{self, Write},
    thread,
};

use tokio::sync::{mpsc, oneshot};

/// The maximum number of lines waiting to be written. While the queue is full, no input is read.
const WAITING: usize = 64;

/// Writes the lines until all senders are dropped or a write fails, and then sends the result.
pub(super) fn start(
    mut to: impl Write + Send + 'static,
) -> (mpsc::Sender<String>, oneshot::Receiver<io::Result<()>>) {
    let (send, mut lines) = mpsc::channel::<String>(WAITING);
    let (over, written) = oneshot::channel();
    // If the thread cannot start, `over` and the receiver of the lines are dropped.
    let _ = thread::Builder::new().name("output".to_owned()).spawn(move || {
        let _ = over.send(write(&mut to, &mut lines));
    });
    (send, written)
}

fn write(to: &mut impl Write, lines: &mut mpsc::Receiver<String>) -> io::Result<()> {
    while let Some(line) = lines.blocking_recv() {
        to.write_all(line.as_bytes())?;
        to.write_all(b"\n")?;
        // Flush only when the queue is empty, to batch writes.
        if lines.is_empty() {
            to.flush()?;
        }
    }
    Ok(())
}
