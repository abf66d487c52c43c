//! The top-level groups of the snapshot, and where the file is written.

use serde_json::{Value, json};
use tachikoma_testkit::Scratch;

use crate::support::{events, run, status, tachikoma, with_history};

#[track_caller]
fn snapshot(scratch: &Scratch) -> Value {
    let text = scratch.read(".ralph/state.json");
    serde_json::from_str(&text).expect("it is JSON")
}

#[test]
fn a_new_loop_has_the_settings_of_its_launch() {
    let scratch = with_history();
    let opened = &events(&scratch, "segment_opened")[0]["state"];
    assert_eq!(opened["iteration"], 0);
    assert_eq!(opened["phase"]["kind"], "idle");
    let found = snapshot(&scratch);
    let core = &found["core"];
    assert_eq!(core["status"], "completed");
    assert_eq!(core["iteration"], 1);
    assert_eq!(core["working_dir"], json!(scratch.path()));
    assert_eq!(core["prompt_path"], "prompt.md");
    let told = status(&scratch);
    assert_eq!(core["started"], told["started_at"]);
    assert_eq!(core["last_activity"], told["last_activity"]);
    assert!(core["started"].as_str() < found["saved_at"].as_str());
    // The hash changes with the configuration.
    let hash = core["config_hash"].clone();
    assert_eq!(hash.as_str().expect("a text").len(), 8, "{hash}");
    let ran = tachikoma(&scratch).run(["run", "--quiet", "--max-iterations", "2", "--delay", "0s"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_ne!(snapshot(&scratch)["core"]["config_hash"], hash);
}

#[test]
fn a_new_session_has_new_counters_and_the_history_has_the_end_and_reason_of_old_ones() {
    let scratch = Scratch::new();
    scratch.write(
        "tachikoma.toml",
        "[reboot]\nmin_reboot_interval = \"0s\"\ntriggers.after_iterations = 2\n",
    );
    let words = run(&["--quiet", "--max-iterations", "5"], "true");
    let ran = tachikoma(&scratch).run(words);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let found = snapshot(&scratch);
    let session = &found["session"];
    assert_eq!(
        session["iterations"], 1,
        "the fifth iteration is the first one of the third session"
    );
    let history = session["history"].as_array().expect("a list");
    assert_eq!(history.len(), 2);
    let mut before = found["core"]["started"].clone();
    for (past, number) in history.iter().zip(1..) {
        assert_eq!(past["number"], number);
        assert_eq!(past["iterations"], 2);
        assert!(past["started"].as_str() >= before.as_str(), "{past}");
        assert!(past["ended"].as_str() >= past["started"].as_str(), "{past}");
        assert!(!past["reason"].as_str().expect("a text").is_empty());
        before = past["ended"].clone();
    }
    assert!(session["started"].as_str() >= before.as_str());
    let stats = &status(&scratch)["stats"];
    let expected = json!({
        "total_iterations": 5,
        "successful_iterations": 5,
        "failed_iterations": 0,
        "reboots": 2,
        "execution_ms": stats["execution_ms"],
    });
    assert_eq!(found["metrics"], expected);
}

/// The command runs in another directory and all paths are configured. No file is created in that directory.
#[test]
fn paths_are_relative_to_the_working_directory() {
    let scratch = Scratch::new();
    scratch.write("work/prompt.md", "go\n");
    scratch.write(
        "tachikoma.toml",
        "working_dir = \"work\"\n[state]\nstate_path = \"kept/here.json\"\n[session]\nstate_dir = \"kept/said\"\n",
    );
    let words = [
        "run",
        "--quiet",
        "--max-iterations",
        "1",
        "--",
        "echo",
        "words",
    ];
    let ran = tachikoma(&scratch).run(words);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    for kept in ["work/kept/here.json", "work/kept/said", "work/.ralph/loops"] {
        assert!(scratch.path().join(kept).exists(), "{kept}");
    }
    for stray in [".ralph", "kept", "work/.ralph/state.json"] {
        assert!(!scratch.path().join(stray).exists(), "{stray}");
    }
    let ran = tachikoma(&scratch).run(["state", "show", "--json"]);
    assert_eq!(ran.stdout, scratch.read("work/kept/here.json"));
    let ran = tachikoma(&scratch).run(["state", "clear", "--purge", "--yes"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert!(!scratch.path().join("work/.ralph").exists());
    assert!(!scratch.path().join("work/kept/said").exists());
    assert!(!scratch.path().join("work/kept/here.json").exists());
}
