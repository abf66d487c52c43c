//! A loop chooses its OpenCode server (shared or own) once and keeps that choice.

use tachikoma_loop_runner::config::OpenCodeServer;
use tachikoma_loop_runner::settings::AgentName;

use crate::loop_support::Place;

#[test]
fn choice_of_server_stays_if_a_shared_server_starts_or_stops() {
    let place = Place::new();
    let mut config = place.config("true");
    config.settings.agent.name = AgentName::OpenCode;
    config.settings.opencode.enabled = true;
    let ralph = config.working_dir.join(".ralph");
    let (shared, own) = (ralph.join("opencode"), ralph.join("opencode-agent"));
    std::fs::create_dir_all(&shared).unwrap();
    // A running supervisor of a shared server holds this lock.
    let lock = std::fs::File::create(shared.join("lock")).unwrap();
    lock.lock().unwrap();
    let becomes = |state: &str| {
        let text = format!(r#"{{"state":"{state}","generation":1}}"#);
        std::fs::write(shared.join("server.json"), text).unwrap();
    };
    becomes("starting");
    let first = config.agent().unwrap();
    becomes("stopped");
    let second = config.agent().unwrap();
    let server = |agent| config.opencode_server(agent);
    for state in ["stopped", "starting"] {
        becomes(state);
        assert_eq!(server(&first), OpenCodeServer::Shared(shared.clone()));
        assert_eq!(server(&second), OpenCodeServer::Own(own.clone()));
    }
}
