//! Reads a file that lists the programs to run, unless another user could have changed the file or the programs.
//!
//! The rule is that of sshd's `StrictModes`: each file, and each folder on the path to it, belongs to root or to this
//! user, and only its owner can write it. There are two differences. The path is followed up to `/`, not to the home
//! folder, because programs may be anywhere; and symbolic links are followed one by one, because whoever can replace
//! a link chooses the program. A folder above with the sticky bit, such as `/tmp`, is accepted although others can
//! write it: they cannot rename or remove files of other users. The folder that holds the file itself is not accepted
//! with the sticky bit, because many programs load files from their own folder.

use std::{
    env,
    ffi::OsString,
    fs::File,
    io::{self, Read},
    os::unix::ffi::OsStringExt as _,
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{FileType, Mode, OFlags, Stat, fstat, lstat, open, openat, readlink},
    io::Errno,
    process::geteuid,
};

/// The most symbolic links on the path to one file; Linux has the same limit.
const MAX_LINKS: u32 = 40;

/// Why a file is not read, or a program not run.
#[derive(Debug)]
pub(crate) enum TrustError {
    /// The file cannot be read.
    Read { path: PathBuf, source: io::Error },
    /// The file is a symbolic link, a folder, a pipe or a device.
    NotAFile { path: PathBuf },
    /// Users other than the owner can write the file, or a folder on the path to it.
    Writable { path: PathBuf, mode: u32 },
    /// The file, or a folder or link on the path to it, belongs to another user.
    Owner { path: PathBuf, owner: u32 },
    /// The file has more bytes than the limit.
    TooLarge { path: PathBuf, limit: u64 },
}

/// Returns the file's text and its folder. The limit is in bytes.
///
/// The folder is opened first and the file by its name in that folder, so that the file that is checked is the file
/// that is read.
pub(crate) fn read_trusted(path: &Path, limit: u64) -> Result<(String, PathBuf), TrustError> {
    let unreadable = |error: io::Error| unreadable(path, error);
    let not_a_file = || TrustError::NotAFile { path: path.into() };
    let name = path.file_name().ok_or_else(not_a_file)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = follow(parent.unwrap_or_else(|| Path::new(".")), path)?;

    let read_only = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let opened = open(&folder, read_only | OFlags::DIRECTORY, Mode::empty())
        .map_err(|error| unreadable(error.into()))?;
    only_ours(&fstat(&opened).map_err(|error| unreadable(error.into()))?, &folder)?;

    // Without NONBLOCK, opening a pipe of that name would block.
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
    File::from(file).take(limit + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > limit {
        return Err(TrustError::TooLarge { path: path.into(), limit });
    }
    Ok((text, folder))
}

/// Checks a program and the path to it.
pub(crate) fn check_program(program: &Path) -> Result<(), TrustError> {
    let file = follow(program, program)?;
    for path in [file.as_path(), file.parent().unwrap_or(&file)] {
        let stat = lstat(path).map_err(|error| unreadable(path, error))?;
        only_ours(&stat, path)?;
    }
    Ok(())
}

/// Follows a path from the root, and checks each folder and link on it. The last component is not checked. An error
/// names `named`.
fn follow(path: &Path, named: &Path) -> Result<PathBuf, TrustError> {
    let absolute = env::current_dir().map_err(|error| unreadable(named, error))?.join(path);
    let mut ahead: Vec<OsString> = Vec::new();
    let add = |ahead: &mut Vec<OsString>, path: &Path| {
        ahead.extend(path.components().rev().map(|part| part.as_os_str().to_owned()));
    };
    add(&mut ahead, &absolute);
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    while let Some(part) = ahead.pop() {
        match Path::new(&part).components().next() {
            Some(Component::RootDir) => at = PathBuf::from("/"),
            Some(Component::ParentDir) => drop(at.pop()),
            Some(Component::Normal(name)) => at.push(name),
            _ => continue,
        }
        let stat = lstat(&at).map_err(|error| unreadable(named, error))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(unreadable(named, Errno::LOOP));
                }
                ours(&stat, &at)?;
                let target = readlink(&at, Vec::new()).map_err(|error| unreadable(named, error))?;
                at.pop();
                add(&mut ahead, Path::new(&OsString::from_vec(target.into_bytes())));
            }
            FileType::Directory if !ahead.is_empty() => on_the_way(&stat, &at)?,
            _ => {}
        }
    }
    Ok(at)
}

fn unreadable(path: &Path, error: impl Into<io::Error>) -> TrustError {
    TrustError::Read { path: path.into(), source: error.into() }
}

/// Checks a folder above the one that holds the file.
fn on_the_way(stat: &Stat, path: &Path) -> Result<(), TrustError> {
    if Mode::from_raw_mode(stat.st_mode).contains(Mode::SVTX) {
        ours(stat, path)
    } else {
        only_ours(stat, path)
    }
}

fn only_ours(stat: &Stat, path: &Path) -> Result<(), TrustError> {
    let mode = Mode::from_raw_mode(stat.st_mode);
    if mode.intersects(Mode::WGRP | Mode::WOTH) {
        return Err(TrustError::Writable { path: path.into(), mode: mode.bits() & 0o777 });
    }
    ours(stat, path)
}

fn ours(stat: &Stat, path: &Path) -> Result<(), TrustError> {
    if stat.st_uid != 0 && stat.st_uid != geteuid().as_raw() {
        return Err(TrustError::Owner { path: path.into(), owner: stat.st_uid });
    }
    Ok(())
}
