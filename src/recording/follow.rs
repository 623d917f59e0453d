//! Reads a file that is still being written.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use super::{RecordError, Recording};

/// How often the end of a growing file is checked for more data.
const LOOK: Duration = Duration::from_millis(100);

impl Recording {
    /// Opens a file that may still be written. At its end, [`entries`](Recording::entries) blocks and checks for more
    /// every 100 ms until the recorder finishes the file. A finished file ends normally.
    ///
    /// If the writer crashed, reading does not end.
    ///
    /// # Errors
    /// As [`open`](Recording::open).
    pub fn follow(path: impl AsRef<Path>) -> Result<Self, RecordError> {
        Self::follow_with(path, || {
            thread::sleep(LOOK);
            true
        })
    }

    /// Like [`follow`](Recording::follow) with a custom wait: `wait` returns when the file should be checked again,
    /// and returns false to stop.
    ///
    /// # Errors
    /// As [`open`](Recording::open).
    pub fn follow_with(
        path: impl AsRef<Path>,
        wait: impl FnMut() -> bool + Send + 'static,
    ) -> Result<Self, RecordError> {
        let path = path.as_ref();
        let recording = Self::open(path)?;
        if recording.about().finished {
            return Ok(recording);
        }
        let file = File::open(path).map_err(|error| RecordError::opening(path, error))?;
        Self::read(Following { file, path: path.to_owned(), wait })
    }
}

/// Reads a file and waits at its end.
struct Following<W> {
    file: File,
    path: PathBuf,
    wait: W,
}

impl<W: FnMut() -> bool> Read for Following<W> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            // Checked before reading, so that data written before the file was replaced is still read.
            let is_replaced = self.is_replaced();
            let count = self.file.read(buffer)?;
            if count > 0 || buffer.is_empty() || is_replaced || !(self.wait)() {
                return Ok(count);
            }
        }
    }
}

impl<W> Following<W> {
    /// Whether the file was replaced or removed: a recorder that finishes replaces it.
    fn is_replaced(&self) -> bool {
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let (Ok(there), Ok(ours)) = (fs::metadata(&self.path), self.file.metadata()) else { return true };
            (there.dev(), there.ino()) != (ours.dev(), ours.ino())
        }
        #[cfg(not(unix))]
        {
            fs::metadata(&self.path).is_err()
        }
    }
}
