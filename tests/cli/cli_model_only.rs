//! What is for the model alone is not printed.

use std::{io::Write as _, process::Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    acp_script::AgentScript,
    cli::toolbridge,
    cli_dev::dev,
    cli_tools::{lines, until},
    for_the_model::{SECRET, blocks, hostile},
    secrets::assert_free,
};

/// A room of the development server, in which the agent is talked to at the command line while two observers watch.
#[test]
fn command_line_shows_nothing_that_is_for_the_model_alone_and_an_answer_once() {
    let (mut server, settings) = dev();
    let script = AgentScript::new("model-only-cli");
    drop(script.agent(&hostile(), ""));
    let start = |arguments: &[&str]| {
        let mut command = toolbridge(arguments);
        command.envs(settings.clone()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let mut watching = [start(&["watch", "--room", "r"]), start(&["watch", "--room", "r", "--json"])];
    for observer in &mut watching {
        until(&lines(observer.stderr.take().unwrap()), "watching r");
    }
    let seen = watching.each_mut().map(|observer| lines(observer.stdout.take().unwrap()));
    let command = script.command();
    let mut terminal =
        start(&[&["acp", "--room", "r", "--"], &command.split(' ').collect::<Vec<_>>()[..]].concat());
    let mut keyboard = terminal.stdin.take().unwrap();
    keyboard.write_all(b"go\n").unwrap();
    let questions = lines(terminal.stderr.take().unwrap());
    let answers = lines(terminal.stdout.take().unwrap());
    let mut shown = Vec::new();
    for n in 1..=blocks().len() {
        shown.push(until(&questions, "asks: Edit"));
        shown.push(until(&questions, &format!("type `option 1 {n}`")));
        keyboard.write_all(format!("option 1 {n}\n").as_bytes()).unwrap();
    }
    let said = until(&answers, "What the agent said is not complete");
    drop(keyboard);
    assert!(terminal.wait().unwrap().success());
    shown.extend(questions.iter().chain(answers.iter()).chain([said]));
    let shown = shown.join("\n");
    assert_free("the terminal", shown.as_bytes(), &[SECRET]);
    assert_eq!(
        shown.matches("a part of its content is for its model alone").count(),
        blocks().len(),
        "{shown}"
    );
    assert!(!shown.contains("│ seen by all"), "what the agent says is printed once, as the answer: {shown}");
    for (observer, seen) in watching.iter_mut().zip(seen) {
        kill_process(Pid::from_child(observer), Signal::INT).unwrap();
        observer.wait().unwrap();
        let seen: Vec<_> = seen.iter().collect();
        assert!(seen.len() > 20, "{seen:#?}");
        assert_free("what an observer prints", seen.join("\n").as_bytes(), &[SECRET]);
    }
    server.kill().unwrap();
    server.wait().unwrap();
}
