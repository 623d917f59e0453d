//! Our lines: written in a thread, so that a driver that does not read stops nothing but itself.

use std::{
    io::{self, Write},
    thread,
};

use tokio::sync::{mpsc, oneshot};

/// Lines that wait to be written. Beyond them, no line is read either.
const WAITING: usize = 64;

/// Writes what is sent until the sender is gone; then, or when it cannot be written any more, says how it went.
pub(super) fn start(
    mut to: impl Write + Send + 'static,
) -> (mpsc::Sender<String>, oneshot::Receiver<io::Result<()>>) {
    let (send, mut lines) = mpsc::channel::<String>(WAITING);
    let (over, written) = oneshot::channel();
    // Without a thread `over` is dropped, and so is what receives the lines.
    let _ = thread::Builder::new().name("output".to_owned()).spawn(move || {
        let _ = over.send(write(&mut to, &mut lines));
    });
    (send, written)
}

fn write(to: &mut impl Write, lines: &mut mpsc::Receiver<String>) -> io::Result<()> {
    while let Some(line) = lines.blocking_recv() {
        to.write_all(line.as_bytes())?;
        to.write_all(b"\n")?;
        // Many at once are one write; the last of them must not wait.
        if lines.is_empty() {
            to.flush()?;
        }
    }
    Ok(())
}
