//! A file that is still being written, read as it grows.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use super::{RecordError, Recording};

/// How often a file that has ended for now is looked at again.
const LOOK: Duration = Duration::from_millis(100);

impl Recording {
    /// Opens a file that may still be written: at its end, [`entries`](Recording::entries) wait for more, 100 ms at a
    /// time, until the recorder finishes the file. One that is finished ends at its end.
    ///
    /// A file whose writer died never ends so.
    ///
    /// # Errors
    /// As [`open`](Recording::open).
    pub fn follow(path: impl AsRef<Path>) -> Result<Self, RecordError> {
        Self::follow_with(path, || {
            thread::sleep(LOOK);
            true
        })
    }

    /// As [`follow`](Recording::follow), with waiting of your own: `wait` returns when it is worth to look again, and
    /// says whether to go on.
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

/// Reads a file, and waits at its end.
struct Following<W> {
    file: File,
    path: PathBuf,
    wait: W,
}

impl<W: FnMut() -> bool> Read for Following<W> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            // It is asked first: what was written before the file was replaced is then still read.
            let is_replaced = self.is_replaced();
            let count = self.file.read(buffer)?;
            if count > 0 || buffer.is_empty() || is_replaced || !(self.wait)() {
                return Ok(count);
            }
        }
    }
}

impl<W> Following<W> {
    /// Whether another file is there by now, or none: a recorder that finishes replaces it.
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
