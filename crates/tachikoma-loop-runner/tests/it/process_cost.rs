//! Many agents, run one after another, leave no zombies and no open file descriptors.

use tachikoma_loop_runner::process::Exit;

use crate::support::{CONTAINMENTS, Rig, alone, children, guard_below, open_files, run};

/// Number of agents to run. It is large enough to notice a leak of one descriptor or zombie per agent.
const AGENTS: usize = 200;

#[test]
fn many_agents_leave_no_zombies_and_no_descriptors() {
    alone(
        "process_cost::many_agents_leave_no_zombies_and_no_descriptors",
        || {
            for containment in CONTAINMENTS {
                run(async {
                    let own = i32::try_from(std::process::id()).unwrap();
                    let mut rig = Rig::new(containment);
                    let guard = guard_below(rig.guard.pid());
                    let mut before = None;
                    for _ in 0..AGENTS {
                        rig.sh("echo x; (true &) ; exit 1");
                        rig.over().await;
                        assert_eq!(rig.seen.exit, Some(Exit::Code(1)));
                        let now = (open_files(own), open_files(guard));
                        assert_eq!(
                            now,
                            *before.get_or_insert(now),
                            "no descriptor is left open"
                        );
                    }
                    assert_eq!(children(guard), "", "the guard has no children left");
                    rig.guard.finish().await;
                });
                // Every thread of this process has its own list of children.
                let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
                for thread in threads {
                    let list = std::fs::read_to_string(thread.path().join("children")).unwrap();
                    assert_eq!(list, "", "the runner has no children left");
                }
            }
        },
    );
}
