//! Tests the timeout of a survey of the work tree.

use tachikoma_core::LoopId;
use tachikoma_testkit::Scratch;

use super::*;
use crate::git::Rules;

#[tokio::test]
async fn survey_after_an_iteration_times_out_when_commits_have_no_limit() {
    let scratch = Scratch::with_git();
    scratch.write("a.txt", "1");
    scratch.git(&["add", "a.txt"]);
    scratch.git(&["commit", "--quiet", "-m", "before"]);
    // A fake `git` that hangs as soon as a certain file exists.
    let bin = scratch.home().join("bin");
    let hang = scratch.home().join("hang");
    let text = format!(
        "#!/bin/sh\ncase \"$*\" in *update-index*) [ -e '{}' ] && exec sleep 1000;; esac\nPATH='{}' exec git \"$@\"\n",
        hang.display(),
        std::env::var("PATH").unwrap(),
    );
    std::fs::create_dir(&bin).unwrap();
    scratch.write_script(bin.join("git"), text);
    let loop_dir = scratch.path().join(".ralph/loops/one");
    std::fs::create_dir_all(&loop_dir).unwrap();
    let options = TrackerOptions {
        hidden: Vec::new(),
        working_dir: scratch.path(),
        loop_dir,
        loop_id: LoopId::from_u128(1),
        search_path: Some(bin.into_os_string()),
        rules: Rules::default(),
    };
    let options = GitWorkerOptions {
        working_dir: options.working_dir.clone(),
        tracker: Some(options),
        runtime_files: RuntimeFiles::default(),
    };
    let mut worker = GitWorker::start(options, ChangeOwner::Others).unwrap();
    let reply = worker.next_event().await;
    assert!(matches!(reply, GitReply::Opened), "{reply:?}");
    scratch.write("a.txt", "2");
    std::fs::write(&hang, "").unwrap();
    let message = "of the loop".to_owned();
    let commit = |number| GitOrder::Commit {
        number,
        commit: Some(Commit {
            message: message.clone(),
            limit: None,
        }),
        owner: ChangeOwner::Loop,
        survey: CancelToken::new(),
        cancel: CancelToken::new(),
    };
    assert!(worker.order(commit(1)));
    let reply = worker.next_event().await;
    let GitReply::Committed {
        result: Err(why), ..
    } = reply
    else {
        panic!("{reply:?}");
    };
    assert!(why.contains("took more than"), "{why}");
    std::fs::remove_file(&hang).unwrap();
    assert!(worker.order(commit(2)));
    let reply = worker.next_event().await;
    let GitReply::Committed {
        result: Ok(kept), ..
    } = reply
    else {
        panic!("{reply:?}");
    };
    assert_eq!(kept.commit.map(|commit| commit.files), Some(1));
    worker.shutdown(true).await;
}
