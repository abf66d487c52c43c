//! The texts of the files that `init` writes.

use std::fmt::Write as _;

use tachikoma_loop_runner::settings::AgentName;
use toml::Value;

/// Address of the JSON Schema. Editors use it to complete and check keys.
const SCHEMA: &str =
    "https://raw.githubusercontent.com/tachikoma-dev/tachikoma/main/docs/tachikoma.schema.json";

/// The answers from which the files are written.
#[derive(Debug)]
pub struct Choices {
    /// Agent that the loop runs.
    pub agent: AgentName,
    /// Command of the gate; `None` for no gate.
    pub test: Option<String>,
    /// Commands besides the tests that the agent may run.
    pub allow: Vec<&'static str>,
    /// Path of the plan.
    pub plan: String,
    /// Whether the plan has check boxes, so that they can be objectives.
    pub plan_has_boxes: bool,
    /// Path of the prompt.
    pub prompt: String,
    /// Maximum number of iterations.
    pub max_iterations: u32,
    /// Maximum cost in US dollars.
    pub max_cost_usd: f64,
}

/// Returns the text of `tachikoma.toml`.
pub fn configuration(choices: &Choices) -> String {
    let quoted = |text: &str| Value::from(text).to_string();
    let agent = choices.agent;
    let mut text = format!(
        "#:schema {SCHEMA}\n\
         # Settings of Tachikoma. `tachikoma config show` lists all keys with their values.\n\n\
         prompt_path = {}\n\
         max_iterations = {}  # 0 = no limit\n\n\
         [agent]\nname = \"{agent}\"\n",
        quoted(&choices.prompt),
        choices.max_iterations,
    );
    let test = choices.test.as_deref();
    let allow = test.filter(|test| is_simple(test)).into_iter();
    let allow: Vec<String> = allow
        .chain(choices.allow.iter().copied())
        .map(quoted)
        .collect();
    let _ = write!(
        text,
        "\n[agents.{agent}]\n\
         # Commands that the agent may run. It may always edit files in this directory.\n\
         allow = [{}]\n",
        allow.join(", ")
    );
    let _ = write!(
        text,
        "\n[stop_conditions]\n\
         max_cost_usd = {:?}  # as reported by the agent; 0 = no limit\n\
         max_duration = \"8h\"  # without waits for usage limits\n",
        choices.max_cost_usd
    );
    let plan = quoted(&choices.plan);
    text.push_str(&match choices.plan_has_boxes {
        true => format!("objectives = {plan}  # the loop ends when all check boxes are ticked\n"),
        false => {
            format!("# objectives = {plan}  # set this when the file has check boxes (`- [ ]`)\n")
        }
    });
    text.push_str(&match test {
        Some(test) => format!(
            "\n# The loop ends as done only if every gate passes.\n\
             [[gate]]\nname = \"tests\"\ncommand = {}\ntimeout = \"10m\"\n",
            quoted(test)
        ),
        None => {
            "\n# No test command was found. Without a gate, the agent's word alone ends the loop.\n\
             # [[gate]]\n# name = \"tests\"\n# command = \"make test\"\n# timeout = \"10m\"\n"
                .to_owned()
        }
    });
    text
}

/// Returns whether a command can be an entry of `allow`: a program and its arguments, without syntax of the shell.
fn is_simple(command: &str) -> bool {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || " _-./+".contains(letter);
    command.chars().all(is_plain)
}

/// Returns the text of the prompt.
pub fn prompt(choices: &Choices) -> String {
    let plan = &choices.plan;
    let (tests, passes) = match &choices.test {
        Some(test) => (
            format!("3. Run `{test}` and fix what fails.\n4."),
            format!(" and `{test}` passes"),
        ),
        None => ("3.".to_owned(), String::new()),
    };
    format!(
        "Work on the tasks in {plan}.\n\n\
         1. Read {plan} and choose the first task with an open check box.\n\
         2. Implement this task completely, with tests.\n\
         {tests} Tick the check box of the task in {plan}.\n\n\
         If all check boxes in {plan} are ticked{passes}, print this line alone:\n\n\
         <promise>COMPLETE</promise>\n"
    )
}

/// Text of the plan.
pub const PLAN: &str = "\
# Plan

Replace the examples with your tasks, one check box for each task. Say what to change and how to see that it works.

- [ ] First task
- [ ] Second task
";
