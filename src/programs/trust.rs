//! Reading a file that says which programs run: only if nobody else could have written it.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FileType, Mode, OFlags, Stat, fstat, open, openat},
    io::Errno,
    process::geteuid,
};

use super::ProgramsError;

/// The largest `tools.toml`, in bytes: four times what all tools of one participant may say.
const MAX_FILE: u64 = 1 << 20;

/// The file's text and the folder that it is in.
///
/// The folder is opened first and the file by its name in there, so that what was looked at is what is read.
pub(super) fn read(path: &Path) -> Result<(String, PathBuf), ProgramsError> {
    let unreadable = |error: io::Error| ProgramsError::Read { path: path.into(), reason: error.to_string() };
    let not_a_file = || ProgramsError::NotAFile { path: path.into() };
    let name = path.file_name().ok_or_else(not_a_file)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = parent.unwrap_or_else(|| Path::new(".")).canonicalize().map_err(unreadable)?;

    let read_only = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let opened = open(&folder, read_only | OFlags::DIRECTORY, Mode::empty())
        .map_err(|error| unreadable(error.into()))?;
    only_ours(&fstat(&opened).map_err(|error| unreadable(error.into()))?, &folder)?;

    // A pipe of that name would be waited for without NONBLOCK.
    let file = match openat(&opened, name, read_only | OFlags::NONBLOCK, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::LOOP) => return Err(not_a_file()),
        Err(error) => return Err(unreadable(error.into())),
    };
    let stat = fstat(&file).map_err(|error| unreadable(error.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(not_a_file());
    }
    only_ours(&stat, path)?;

    let mut text = String::new();
    File::from(file).take(MAX_FILE + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_FILE {
        return Err(ProgramsError::TooLarge { path: path.into(), limit: MAX_FILE });
    }
    Ok((text, folder))
}

fn only_ours(stat: &Stat, path: &Path) -> Result<(), ProgramsError> {
    let mode = Mode::from_raw_mode(stat.st_mode);
    if mode.intersects(Mode::WGRP | Mode::WOTH) {
        return Err(ProgramsError::Writable { path: path.into(), mode: mode.bits() & 0o777 });
    }
    if stat.st_uid != 0 && stat.st_uid != geteuid().as_raw() {
        return Err(ProgramsError::Owner { path: path.into(), owner: stat.st_uid });
    }
    Ok(())
}
