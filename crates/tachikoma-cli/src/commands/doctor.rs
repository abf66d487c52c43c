//! `tachikoma doctor`: checks the agents, the configuration and the machine. Every check returns a result that is printed at once.

mod agents;
mod check;
mod limited;
mod machine;
mod mistakes;

use std::process::ExitCode;

use serde_json::json;
use tachikoma_loop_runner::settings::Settings;

use super::launch::{self, Base};
use crate::failure::Failure;
use crate::out;
use crate::secrets;
use crate::trust::{Trust, Untrusted};
use crate::view::number;
use crate::workspace::Workspace;
use check::{Check, Status};

/// Runs all checks. The exit code is 1 if one of them found an error.
pub fn doctor(workspace: &Workspace, json: bool) -> Result<ExitCode, Failure> {
    let base = Base::read(workspace);
    if let Ok(base) = &base {
        // Gates and git must not see the secrets of notifications.
        let settings = &base.loaded.settings;
        let needed = launch::secrets_of(settings, None).unwrap_or_default();
        secrets::remove_from_environment(&secrets::secret_names(settings), &needed)?;
    }
    let mut report = Report::new(json);
    check_all(workspace, base, &mut report);
    report.finish()
}

fn check_all(workspace: &Workspace, base: Result<Base, Failure>, report: &mut Report) {
    let (settings, working_dir, is_trusted) = match base {
        Ok(base) => {
            report.add(Check::ok("configuration", "valid"));
            let trust = Trust::new(workspace, Untrusted::Refuse);
            let trusted = trust.check_configuration(&base.working_dir, &base.loaded);
            report.add(match &trusted {
                Ok(()) => Check::ok("trust", "the configuration is trusted"),
                Err(_) => Check::warning(
                    "trust",
                    "the configuration is not trusted: its programs are not run",
                    "read tachikoma.toml, then run `tachikoma trust`",
                ),
            });
            for (key, _) in base.loaded.not_built() {
                let message = format!("`{key}` is accepted but has no effect yet");
                report.add(Check::warning("configuration", message, "remove the key"));
            }
            (base.loaded.settings, base.working_dir, trusted.is_ok())
        }
        Err(failure) => {
            let fix = failure.hint.unwrap_or_else(|| {
                "correct it; `tachikoma config check` checks it again".to_owned()
            });
            report.add(Check::error("configuration", failure.what, fix));
            (Settings::default(), workspace.directory.clone(), false)
        }
    };
    for check in mistakes::mistakes(&settings) {
        report.add(check);
    }
    for check in agents::agents(workspace, &settings, is_trusted) {
        report.add(check);
    }
    report.add(agents::prompt(&working_dir, &settings));
    for check in machine::git(workspace, &working_dir, &settings) {
        report.add(check);
    }
    report.add(machine::disk(&working_dir));
    report.add(machine::containment());
    report.add(machine::clock());
    if is_trusted {
        for (number, notify) in (1..).zip(&settings.notify) {
            report.add(machine::notification(workspace, number, notify));
        }
        for gate in &settings.gate {
            report.add(machine::gate(&working_dir, gate));
        }
    }
}

/// The results so far.
struct Report {
    json: bool,
    checks: Vec<Check>,
}

impl Report {
    fn new(json: bool) -> Self {
        let checks = Vec::new();
        Self { json, checks }
    }

    fn add(&mut self, check: Check) {
        if !self.json {
            check.print();
        }
        self.checks.push(check);
    }

    fn count(&self, status: Status) -> u64 {
        let found = self.checks.iter().filter(|check| check.status == status);
        found.count() as u64
    }

    fn finish(&self) -> Result<ExitCode, Failure> {
        let (errors, warnings) = (self.count(Status::Error), self.count(Status::Warning));
        if self.json {
            let object = json!({ "errors": errors, "warnings": warnings, "checks": self.checks });
            out::line(&object.to_string());
        } else {
            let errors = number::count(errors, "error");
            out::line(&format!("{errors}, {}", number::count(warnings, "warning")));
        }
        Ok(match errors {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        })
    }
}
