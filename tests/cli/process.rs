//! Children that run for long, with real processes: their streams, their end, and that no process is left behind.

use std::{
    env, io,
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{Command as StdCommand, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    process::ChildStdout,
};
use toolbridge::process::{Child, Command, MAX_STDERR, Stdin};

use crate::program_tools::ProcessPipe;

fn sh(script: &str) -> Command {
    Command::new("/bin/sh").unwrap().arg("-c").arg(script)
}

/// A script whose processes hold the pipe open.
fn seen(pipe: &ProcessPipe, script: &str) -> Command {
    sh(&format!("exec 3>'{}'; {script}", pipe.path.display()))
}

async fn line(stdout: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    stdout.read_line(&mut line).await.unwrap();
    line.trim().to_owned()
}

/// Starts the script, and waits for its first line.
async fn started(command: &Command) -> (Child, Stdin, String) {
    let (child, stdin, stdout) = command.spawn().unwrap();
    let first = line(&mut BufReader::new(stdout)).await;
    (child, stdin, first)
}

/// Runs one test of this file again, in a process of its own with this variable.
fn again(test: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = StdCommand::new(env::current_exe().unwrap());
    command.args(["--exact", &format!("process::{test}"), "--nocapture"]);
    command.envs(variables.iter().copied()).stdin(Stdio::null()).output().unwrap()
}

#[tokio::test]
async fn child_answers_each_line_and_ends_with_its_input() {
    let (child, mut stdin, stdout) = Command::from_line("cat -u").unwrap().spawn().unwrap();
    let mut stdout = BufReader::new(stdout);
    for text in ["one", "two", &"x".repeat(200_000)] {
        let sent = format!("{text}\n");
        let (written, read) = tokio::join!(stdin.write_all(sent.as_bytes()), line(&mut stdout));
        written.unwrap();
        assert_eq!(read, text);
    }
    let exit = child.close().await.unwrap();
    assert!(exit.status().success());
    let error = stdin.write_all(b"three\n").await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn child_reads_the_end_when_its_input_is_shut_down_or_dropped() {
    for dropped in [true, false] {
        let (mut child, mut stdin, mut stdout) = sh("cat; echo end").spawn().unwrap();
        stdin.write_all(b"a").await.unwrap();
        if dropped {
            drop(stdin);
        } else {
            stdin.shutdown().await.unwrap();
        }
        let exit = child.wait().await.unwrap();
        assert!(exit.status().success());
        // What it wrote before it ended is not lost.
        let mut text = String::new();
        stdout.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "aend\n");
    }
}

#[tokio::test]
async fn exit_is_noticed_with_its_status_and_stderr() {
    let (mut child, _stdin, _stdout) = sh("echo first >&2; echo last >&2; exit 7").spawn().unwrap();
    let exit = child.wait().await.unwrap();
    assert_eq!((exit.status().code(), exit.stderr()), (Some(7), &b"first\nlast\n"[..]));
    assert_eq!(child.wait().await.unwrap().status(), exit.status());
    assert_eq!(child.stderr(), exit.stderr());
    assert_eq!(format!("{child:?}"), format!("Child {{ exit: Some({exit:?}), .. }}"));
    assert_eq!(format!("{exit:?}"), "Exit { status: ExitStatus(unix_wait_status(1792)), .. }");
    assert_eq!(child.close().await.unwrap().stderr(), exit.stderr());
}

#[tokio::test]
async fn killed_wrapper_ends_the_server_that_it_started() {
    let pipe = ProcessPipe::new("wrapper");
    let script = "trap '' TERM; echo begun >&3; sleep 1000 & echo $$; wait";
    let (mut child, _stdin, wrapper) = started(&seen(&pipe, script)).await;
    let kill =
        async { kill_process(Pid::from_raw(wrapper.parse().unwrap()).unwrap(), Signal::KILL).unwrap() };
    let (exit, ()) = tokio::join!(child.wait(), kill);
    assert_eq!(exit.unwrap().status().signal(), Some(9));
    pipe.all_processes_ended().await;
}

#[tokio::test]
async fn unread_stderr_of_10_mb_does_not_block_the_child() {
    let script = "head -c 10000000 /dev/zero | tr '\\0' x >&2; echo last >&2; echo done; cat";
    let (child, _stdin, first) = started(&sh(script)).await;
    assert_eq!(first, "done");
    let exit = child.close().await.unwrap();
    assert_eq!(exit.stderr().len(), MAX_STDERR);
    assert!(exit.stderr().ends_with(b"xxlast\n"));
}

#[tokio::test]
async fn closed_child_is_asked_by_its_input_then_by_sigterm_and_then_killed() {
    let reads = "echo up; while read line; do :; done; echo eof >&2";
    for (script, code, signal, stderr) in [
        (format!("{reads}; exit 3"), Some(3), None, "eof\n"),
        (
            format!("trap 'echo term >&2; exit 4' TERM; {reads}; while :; do sleep 1000; done"),
            Some(4),
            None,
            "eof\nterm\n",
        ),
        (
            format!("trap 'echo term >&2' TERM; {reads}; while :; do sleep 1000; done"),
            None,
            Some(9),
            "eof\nterm\n",
        ),
    ] {
        let (child, _stdin, _) = started(&sh(&script)).await;
        let exit = child.close().await.unwrap();
        // The shell may report that its `sleep` was terminated.
        let text = String::from_utf8_lossy(exit.stderr()).replace("Terminated\n", "");
        assert_eq!((exit.status().code(), exit.status().signal()), (code, signal), "{script}");
        assert_eq!(text, stderr, "{script}");
    }
}

#[tokio::test]
async fn sec_x2_child_that_ignores_its_input_and_sigterm_is_killed_with_its_children() {
    let pipe = ProcessPipe::new("stubborn");
    let script = "trap '' TERM; sleep 1000 & echo begun >&3; echo up; while :; do sleep 1000; done";
    let (child, _stdin, _) = started(&seen(&pipe, script)).await;
    assert_eq!(child.close().await.unwrap().status().signal(), Some(9));
    pipe.all_processes_ended().await;
}

#[tokio::test]
async fn sec_x2_grandchild_that_outlives_the_program_is_ended_by_close() {
    let pipe = ProcessPipe::new("outlives");
    let (child, _stdin, _) = started(&seen(&pipe, "sleep 1000 & echo begun >&3; echo up; cat")).await;
    assert!(child.close().await.unwrap().status().success());
    pipe.all_processes_ended().await;
}

#[tokio::test]
async fn sec_x2_dropped_child_is_killed_with_its_children() {
    let script = "trap '' TERM; sleep 1000 & echo begun >&3; echo up; while :; do sleep 1000; done";
    for end in ["drop", "panic", "wait", "close"] {
        let pipe = ProcessPipe::new("dropped-child");
        let (mut child, _stdin, _) = started(&seen(&pipe, script)).await;
        match end {
            "drop" => drop(child),
            "panic" => {
                let task = tokio::spawn(async move {
                    let _child = child;
                    panic!("on purpose");
                });
                assert!(task.await.unwrap_err().is_panic());
            }
            _ => {
                let task = tokio::spawn(async move {
                    match end {
                        "wait" => child.wait().await,
                        _ => child.close().await,
                    }
                });
                tokio::task::yield_now().await;
                task.abort();
                assert!(task.await.unwrap_err().is_cancelled());
            }
        }
        pipe.all_processes_ended().await;
    }
}

#[tokio::test]
async fn write_that_waits_fails_when_the_child_is_closed() {
    let (child, mut stdin, _) = started(&sh("echo up; exec sleep 1000")).await;
    let (written, exit) = tokio::join!(stdin.write_all(&[0; 1 << 20]), child.close());
    assert_eq!(written.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    assert_eq!(exit.unwrap().status().signal(), Some(15));
}

#[tokio::test]
async fn sec_x2_child_inherits_the_users_variables_and_no_livekit_secret() {
    if env::var_os("LIVEKIT_API_SECRET").is_none() {
        let test = "sec_x2_child_inherits_the_users_variables_and_no_livekit_secret";
        let secrets = [("LIVEKIT_API_SECRET", "hunter2"), ("HOME", "/home/test"), ("LOGNAME", "logname")];
        let output = again(test, &secrets);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let command = Command::find("env").unwrap().env("LOGNAME", "own").inherit_user();
    let (_child, _stdin, mut stdout) = command.spawn().unwrap();
    let mut text = String::new();
    stdout.read_to_string(&mut text).await.unwrap();
    assert!(text.contains("HOME=/home/test\n") && text.contains("LOGNAME=own\n"), "{text}");
    for line in text.lines() {
        let name = line.split_once('=').unwrap().0;
        assert!(["HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"].contains(&name), "{name}");
    }
}

#[tokio::test]
async fn child_starts_in_its_folder() {
    assert_eq!(started(&sh("pwd")).await.2, "/");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).canonicalize().unwrap();
    assert_eq!(started(&sh("pwd").folder(&folder)).await.2, folder.to_str().unwrap());
}

#[tokio::test]
async fn sec_x2_aborted_process_leaves_no_supervised_child() {
    const HELD: &str = "TOOLBRIDGE_TEST_PIPE";
    let script = "trap '' TERM; sleep 1000 & echo begun >&3; echo up; while :; do sleep 1000; done";
    if let Some(path) = env::var_os(HELD) {
        let command = sh(&format!("exec 3>'{}'; {script}", Path::new(&path).display()));
        let (_child, _stdin, first) = started(&command.supervisor(env!("CARGO_BIN_EXE_toolbridge"))).await;
        assert_eq!(first, "up");
        std::process::abort();
    }
    let mut pipe = ProcessPipe::new("aborted");
    let path = pipe.path.to_str().unwrap().to_owned();
    let output = again("sec_x2_aborted_process_leaves_no_supervised_child", &[(HELD, &path)]);
    assert_eq!(output.status.signal(), Some(Signal::ABORT.as_raw()));
    assert_eq!(pipe.begun().await, "begun");
    pipe.all_processes_ended().await;
}

#[tokio::test]
async fn supervised_child_has_the_same_streams_and_status() {
    let supervised = |script: &str| sh(script).supervisor(env!("CARGO_BIN_EXE_toolbridge"));
    let (child, mut stdin, stdout) = supervised("cat -u; echo last >&2; exit 5").spawn().unwrap();
    let mut stdout = BufReader::new(stdout);
    stdin.write_all(b"one\n").await.unwrap();
    assert_eq!(line(&mut stdout).await, "one");
    let exit = child.close().await.unwrap();
    assert_eq!((exit.status().code(), exit.stderr()), (Some(5), &b"last\n"[..]));

    let (mut child, _stdin, _) = started(&supervised("echo up; kill -9 $$")).await;
    assert_eq!(child.wait().await.unwrap().status().signal(), Some(9));

    let missing = Command::new("/etc/passwd").unwrap().supervisor(env!("CARGO_BIN_EXE_toolbridge"));
    let (mut child, _stdin, _stdout) = missing.spawn().unwrap();
    assert_eq!(child.wait().await.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
}
