//! Checks before a loop starts in a repository: whether it can commit, and whether uncommitted changes exist.

use tachikoma_loop_runner::store::lock::is_held;
use tachikoma_testkit::{Ran, Scratch, await_until};

use crate::git_support::{commit_all, repository, sh};
use crate::support::{BUSY, CLAIMS, SOON, run, start_busy, tachikoma};

fn start(scratch: &Scratch, flags: &[&str]) -> Ran {
    let more = flags.contains(&"--max-iterations");
    let limit: &[&str] = if more {
        &[]
    } else {
        &["--max-iterations", "1"]
    };
    let flags = [&["--quiet"], limit, flags].concat();
    tachikoma(scratch).run(run(&flags, "true"))
}

#[track_caller]
fn refused(scratch: &Scratch, flags: &[&str], says: &[&str]) {
    let ran = start(scratch, flags);
    assert_eq!(ran.code(), Some(2), "{}", ran.snapshot());
    for says in says {
        assert!(ran.stderr.contains(says), "{says}: {}", ran.stderr);
    }
    assert!(
        !scratch.path().join(".ralph").exists(),
        "no loop was started"
    );
}

#[test]
fn a_dirty_work_tree_is_refused_at_the_first_start_with_three_ways_out() {
    let ways_out = [
        "commit or stash them",
        "`--allow-dirty`",
        "`--no-auto-commit`",
    ];
    let scratch = repository();
    scratch.write("tracked", "edited\n");
    refused(
        &scratch,
        &[],
        &["a tracked file has changes that are not committed: tracked"],
    );
    refused(&scratch, &[], &ways_out);
    refused(&scratch, &["--dry-run"], &ways_out);
    sh(&scratch, "git add tracked; rm gone");
    refused(
        &scratch,
        &[],
        &["2 tracked files have changes that are not committed: gone, tracked"],
    );

    for number in 10..30 {
        scratch.write(format!("file-{number}"), "1");
    }
    sh(&scratch, "git add .");
    let ran = start(&scratch, &[]);
    assert!(ran.stderr.contains("22 tracked files"), "{}", ran.stderr);
    assert_eq!(ran.stderr.matches("file-").count(), 10, "{}", ran.stderr);
    assert!(ran.stderr.contains("file-19 and 12 more"), "{}", ran.stderr);

    // Each suggested option works, and an existing loop continues with uncommitted changes.
    assert_eq!(start(&scratch, &["--no-auto-commit"]).code(), Some(3));
    assert_eq!(start(&scratch, &["--new", "--allow-dirty"]).code(), Some(3));
    let ran = start(&scratch, &["--max-iterations", "2"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let ran = start(&scratch, &["--new"]);
    assert_eq!(
        ran.code(),
        Some(2),
        "a new loop is checked at its first start, too"
    );
    commit_all(&scratch);
    assert_eq!(start(&scratch, &["--new"]).code(), Some(3));
}

#[test]
fn changes_of_untracked_files_and_submodules_do_not_prevent_a_start() {
    let scratch = repository();
    sh(
        &scratch,
        "git init -q ../other; cd ../other; git config user.name a; git config user.email b
         git commit -q --allow-empty -m 1; cd ../w
         git -c protocol.file.allow=always submodule --quiet add \"$PWD/../other\" sub; git commit -qam sub
         mkdir -p .ralph; echo 1 > .ralph/theirs; git add -f .ralph/theirs; git commit -qm theirs
         echo 1 > untracked; echo 1 > noise.log; echo 1 > sub/dirty; echo 2 > .ralph/theirs; touch tracked",
    );
    let ran = start(&scratch, &[]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
}

#[test]
fn a_run_that_commits_is_refused_without_a_git_identity() {
    let scratch = repository();
    assert_eq!(start(&scratch, &[]).code(), Some(3));
    sh(
        &scratch,
        "git config --unset user.name; git config --unset user.email; git config user.useConfigOnly true",
    );
    // The identity is checked at every start, not only at the first one.
    let ran = start(&scratch, &["--max-iterations", "2"]);
    assert_eq!(ran.code(), Some(2), "{}", ran.snapshot());
    for says in [
        "git has no identity for commits",
        "`git config user.name",
        "`git config user.email",
        "`--no-auto-commit`",
    ] {
        assert!(ran.stderr.contains(says), "{says}: {}", ran.stderr);
    }
    let ran = start(&scratch, &["--max-iterations", "2", "--no-auto-commit"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
}

#[test]
fn a_dry_run_prints_how_git_is_used() {
    let said = |scratch: &Scratch, flags: &[&str]| {
        let ran = start(scratch, &[&["--dry-run"], flags].concat());
        assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
        let mut lines = ran.stdout.lines().filter(|line| line.starts_with("git "));
        lines.next().unwrap_or_default().to_owned()
    };
    let scratch = repository();
    let keeps = "git stores a snapshot of the work tree before each iteration, and ";
    assert_eq!(
        said(&scratch, &[]),
        format!("{keeps}the loop's changes are committed after it")
    );
    assert_eq!(
        said(&scratch, &["--no-auto-commit"]),
        format!("{keeps}nothing is committed (git.auto_commit)")
    );
    assert_eq!(
        said(&Scratch::new(), &[]),
        "git is not used: no repository here"
    );
    sh(&scratch, "mkdir -p ':(top)x/sub' out.log");
    let below = |dir: &str| {
        let ran = tachikoma(&scratch)
            .in_dir(dir)
            .run(run(&["--dry-run"], "true"));
        assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
        ran.stdout.contains(keeps)
    };
    assert!(below(":(top)x/sub"));
    assert!(!below("out.log"), "the repository ignores the file");
    let broken = Scratch::new();
    broken.write(".git/HEAD", "nonsense");
    let said = said(&broken, &[]);
    assert!(said.starts_with("git is not used: "), "{said}");
}

/// Runs a loop in a directory until its agent claims completion.
#[track_caller]
fn works_and_claims(scratch: &Scratch, dir: &str) -> Ran {
    let flags = ["--quiet", "--no-auto-commit"];
    let script = format!("touch done.$$; {CLAIMS}");
    let ran = tachikoma(scratch).in_dir(dir).run(run(&flags, &script));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    ran
}

#[test]
fn run_warns_of_a_loop_in_a_parent_directory_of_the_same_repository() {
    let scratch = repository();
    scratch.write("sub/deep/file", "1");
    commit_all(&scratch);
    let second = |dir: &str| {
        let ran = works_and_claims(&scratch, dir);
        ran.stderr.contains("another loop works in")
    };
    assert!(!second("sub/deep"), "no loop is running");
    let live = start_busy(&scratch, &["--no-auto-commit"]);
    assert!(second("sub/deep"));
    // A loop in another repository is not reported.
    sh(
        &scratch,
        "git init -q sub; cd sub; git config user.name a; git config user.email b",
    );
    assert!(!second("sub/deep"));
    crate::support::kill(&scratch, live);
}

#[test]
fn run_warns_of_a_loop_elsewhere_in_the_same_repository() {
    let scratch = repository();
    for dir in ["one/deep", "other"] {
        scratch.write(format!("{dir}/file"), "1");
    }
    commit_all(&scratch);
    let mut live = tachikoma(&scratch)
        .in_dir("one/deep")
        .spawn(run(&["--no-auto-commit"], BUSY));
    let works_in = scratch.path().join("one/deep");
    await_until("it is live", SOON, || is_held(&works_in));
    for dir in ["other", "."] {
        let ran = works_and_claims(&scratch, dir);
        let says = format!("another loop works in {}", works_in.display());
        assert!(ran.stderr.contains(&says), "{dir}: {}", ran.stderr);
    }
    live.signal(rustix::process::Signal::KILL);
    await_until("it is dead", SOON, || !is_held(&works_in));
}

#[test]
fn an_edited_prompt_or_configuration_starts_a_loop_and_stays_uncommitted() {
    let scratch = repository();
    scratch.write("prompt.md", "first\n");
    scratch.write("tachikoma.toml", "iteration_delay = '0s'\n");
    commit_all(&scratch);
    scratch.write("prompt.md", "second\n");
    scratch.write("tachikoma.toml", "iteration_delay = '1s'\n");
    let words = [
        "run",
        "--quiet",
        "-n",
        "1",
        "--",
        "sh",
        "-c",
        "echo x > new",
    ];
    let ran = tachikoma(&scratch).run(words);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let left = scratch.git(&["status", "--porcelain"]);
    assert_eq!(left, " M prompt.md\n M tachikoma.toml\n");
    scratch.write("tracked", "edited\n");
    let ran = tachikoma(&scratch).run(["run", "--new", "--", "true"]);
    assert_eq!(ran.code(), Some(2), "{}", ran.snapshot());
    assert!(
        ran.stderr
            .contains("a tracked file has changes that are not committed: tracked"),
        "{}",
        ran.stderr
    );
}
