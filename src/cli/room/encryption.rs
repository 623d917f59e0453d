//! Reads the keys of a room that is encrypted end to end, also while the command is in it.

use std::{
    fs::{self, File},
    io,
    num::ParseIntError,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    str::FromStr,
    thread,
    time::Duration,
};

use clap::Args;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task,
};

use super::connect::{of_file, read_opened};
use crate::cli::terminal::failure::{Failure, hint};
use toolbridge::livekit::{E2eeKey, E2eeKeys};

/// How often the files of keys are looked at: once a second.
const INTERVAL: Duration = Duration::from_secs(1);

/// The keys of a room that is encrypted end to end.
#[derive(Clone, Debug, Default, Args)]
pub(in crate::cli) struct Encryption {
    /// File with the shared key of a room that is encrypted end to end, with its place in the key ring (0 to 15) if it has one;
    /// may be repeated. Packets are sent with the last one, or with the one whose file has changed since. SIGUSR1 ratchets it
    #[arg(long = "e2ee-key-file", value_name = "[INDEX=]FILE", help_heading = "Server")]
    files: Vec<KeyFile>,

    /// Salt of the keys [default: that of LiveKit's SDKs]
    #[arg(long = "e2ee-salt", value_name = "TEXT", requires = "files", help_heading = "Server")]
    salt: Option<String>,

    /// The files of keys hold random bytes, and no text: as a key that is an `ArrayBuffer` in livekit-client
    #[arg(long = "e2ee-random-bytes", requires = "files", help_heading = "Server")]
    is_random: bool,

    /// Follow participants that ratchet their key, by up to so many steps at once
    #[arg(
        long = "e2ee-ratchet-window",
        value_name = "STEPS",
        requires = "files",
        default_value_t = 0,
        hide_default_value = true,
        value_parser = clap::value_parser!(u8).range(0..=16),
        help_heading = "Server"
    )]
    ratchet_window: u8,
}

/// A file, and the place of its key if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeyFile {
    index: Option<u8>,
    path: PathBuf,
}

impl FromStr for KeyFile {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        let is_index = |index: &str| !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit());
        Ok(match text.split_once('=').filter(|(index, _)| is_index(index)) {
            Some((index, path)) => Self { index: Some(index.parse()?), path: path.into() },
            None => Self { index: None, path: text.into() },
        })
    }
}

/// What shows that a file has changed.
type Version = Option<(u64, i64, i64, u64)>;

impl Encryption {
    pub(in crate::cli) fn is_on(&self) -> bool {
        !self.files.is_empty()
    }

    /// Reads the keys, and again when a file has changed.
    pub(in crate::cli) fn keys(&self) -> Result<Option<E2eeKeys>, Failure> {
        let mut keys: Option<E2eeKeys> = None;
        let mut seen = Vec::new();
        for file in &self.files {
            seen.push(version(&file.path));
            let key = self.key(file)?;
            match &keys {
                Some(keys) => keys.set(key),
                None => keys = Some(E2eeKeys::new(key).ratchet_window(self.ratchet_window)),
            }
        }
        if let Some(keys) = keys.clone() {
            let (own, of_files) = (self.clone(), keys.clone());
            thread::spawn(move || own.watch(&of_files, seen));
            let asked = signal(SignalKind::user_defined1()).map_err(Failure::failed)?;
            ratchet_when_asked(keys, asked);
        }
        Ok(keys)
    }

    /// Never returns: the command ends with its process.
    fn watch(&self, keys: &E2eeKeys, mut seen: Vec<Version>) {
        loop {
            thread::sleep(INTERVAL);
            for (file, seen) in self.files.iter().zip(&mut seen) {
                let now = version(&file.path);
                if now.is_none() || now == *seen {
                    continue; // an editor may have removed it for a moment
                }
                *seen = now;
                match self.key(file) {
                    Ok(key) => {
                        keys.set(key);
                        hint(&format!(
                            "{} has changed: data is encrypted with its key from now on",
                            file.path.display()
                        ));
                    }
                    Err(Failure::Usage(why)) => hint(&format!("the key before is kept: {why}")),
                    Err(_) => {} // files have no other failure
                }
            }
        }
    }

    /// Reads a key. A line break at the end of a text, which editors write, is not part of it.
    fn key(&self, KeyFile { index, path }: &KeyFile) -> Result<E2eeKey, Failure> {
        let file = File::open(path).map_err(|error| of_file(path, &error))?;
        if is_read_by_others(&file).map_err(|error| of_file(path, &error))? {
            let why = "other users can read it, and it contains a secret; run chmod 600";
            return Err(of_file(path, &why));
        }
        let read = read_opened(path, file)?;
        let text =
            read.strip_suffix(b"\n").map_or(&read[..], |text| text.strip_suffix(b"\r").unwrap_or(text));
        let secret = if self.is_random { &read[..] } else { text };
        if secret.is_empty() {
            return Err(of_file(path, &"the file is empty; it must contain the shared key of the room"));
        }
        let key = if self.is_random { E2eeKey::from_random_bytes(secret) } else { E2eeKey::new(secret) };
        let key = self.salt.iter().fold(key, E2eeKey::salt);
        index
            .map_or(Ok(key.clone()), |index| key.index(index))
            .map_err(|error| Failure::usage(error.to_string()))
    }
}

#[expect(clippy::disallowed_methods, reason = "ends with the command")]
fn ratchet_when_asked(keys: E2eeKeys, mut asked: Signal) {
    tokio::spawn(async move {
        while asked.recv().await.is_some() {
            let keys = keys.clone();
            if task::spawn_blocking(move || keys.ratchet()).await.is_ok() {
                hint("data is encrypted with the next key of the ratchet from now on");
            }
        }
    });
}

fn version(path: &Path) -> Version {
    let about = fs::metadata(path).ok()?;
    Some((about.ino(), about.mtime(), about.mtime_nsec(), about.len()))
}

/// Returns whether users other than the owner of a regular file may read or write it.
fn is_read_by_others(file: &File) -> io::Result<bool> {
    let about = file.metadata()?;
    Ok(about.is_file() && about.permissions().mode() & 0o066 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_may_name_the_place_of_its_key() {
        let file = |index, path: &str| Ok(KeyFile { index, path: path.into() });
        assert_eq!("key".parse(), file(None, "key"));
        assert_eq!("15=key".parse(), file(Some(15), "key"));
        assert_eq!("a=b".parse(), file(None, "a=b"));
        assert_eq!("=b".parse(), file(None, "=b"));
        assert!("256=key".parse::<KeyFile>().is_err());
    }
}
