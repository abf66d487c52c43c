//! Objectives: they are read before the loop and after each iteration. When all are ticked, completion is claimed.

use tachikoma_core::{Answers, ObjectivesSeen, Outcome};

use super::completion::with_objectives;
use crate::play::Play;

/// A loop that started with these objectives. The agent of its first iteration is running.
fn begun(markdown: &str) -> Play {
    let mut play = Play::new(with_objectives());
    play.start().objectives(markdown).launched();
    play
}

fn gone() -> Answers {
    Answers {
        objectives: Some(ObjectivesSeen::Unknown {
            reason: "read plan.md: no such file".to_owned(),
        }),
        scripts: Vec::new(),
    }
}

#[test]
fn all_objectives_ticked_is_a_claim_and_an_open_objective_refuses_other_claims() {
    let mut play = begun("- [ ] a\n- [ ] b\n- [ ] c\n- [ ] d\n- [ ] e\n");
    play.claimed()
        .objectives("- [x] a\n- [ ] b\n- [ ] c\n- [ ] d\n- [ ] e\n");
    play.sleep().launched().exited(0);
    play.objectives("- [x] a\n- [x] b\n- [x] c\n- [x] d\n- [x] e\n");
    insta::assert_snapshot!(play.log(), @"
    0.0 start: Started(new), CheckStarted(asking within 10s) ! ask
    0.0 answered: ConditionsAnswered(0 of 5), SessionStarted(1), IterationStarted(1 attempt 1) ! launch
    0.0 launched: AgentLaunched(77)
    0.0 claimed: IterationCompleted(1 succeeded, claimed), CheckStarted(asking within 10s) ! ask
    0.0 answered: ConditionsAnswered(1 of 5), ClaimRefused(the agent's promise: 4 of 5 objectives are open: b; c; d; and 1 more), ProgressMeasured(1: 10), WaitStarted(delay 5s)
    5.0 wake: IterationStarted(2 attempt 1) ! launch
    5.0 launched: AgentLaunched(77)
    5.0 exited 0: IterationCompleted(2 succeeded), CheckStarted(asking within 10s) ! ask
    5.0 answered: ConditionsAnswered(5 of 5), ProgressMeasured(2: 20), Completed(the work is complete) ! finish
    ");
}

#[test]
fn objectives_ticked_before_the_loop_are_not_a_claim() {
    let mut play = begun("- [x] a\n");
    play.exited(0).objectives("- [x] a\n");
    assert_eq!(play.state.outcome(), None);
    play.sleep().launched().claimed().objectives("- [x] a\n");
    assert_eq!(
        play.state.outcome(),
        Some(&Outcome::Done),
        "the agent's own claim is accepted"
    );
    let mut play = begun("- [ ] a\n");
    play.exited(1).objectives("- [x] a\n");
    assert_eq!(play.state.outcome(), None);
    play.sleep().launched().exited(0).objectives("- [x] a\n");
    assert_eq!(play.state.outcome(), Some(&Outcome::Done));
}

#[test]
fn removed_check_boxes_do_not_count_as_done() {
    let mut play = begun("- [ ] a\n- [ ] b\n- [ ] c\n");
    play.hush().exited(0).objectives("- [x] all\n");
    insta::assert_snapshot!(play.log(), @"
    0.0 exited 0: IterationCompleted(1 succeeded), CheckStarted(asking within 10s) ! ask
    0.0 answered: ConditionsAnswered(1 of 1), Warned(the objectives had 3 check boxes, and now have 1), ClaimRefused(the objectives, all of which are ticked: the objectives had 3 check boxes, and have 1: removed check boxes do not count as done), ProgressMeasured(1: 10), WaitStarted(delay 5s)
    ");
    play.sleep().launched().claimed().objectives("- [x] all\n");
    assert_eq!(
        play.state.outcome(),
        Some(&Outcome::Done),
        "the agent's own claim is accepted"
    );
}

#[test]
fn objectives_are_read_once_before_the_first_iteration() {
    let mut play = Play::new(with_objectives());
    play.start().crash().objectives("- [ ] a\n").launched();
    play.crash().launched().exited(0).objectives("- [x] a\n");
    insta::assert_snapshot!(play.log(), @"
    0.0 start: Started(new), CheckStarted(asking within 10s) ! ask
    0.0 start: Started(after crash), CheckStarted(asking within 10s) ! ask
    0.0 answered: ConditionsAnswered(0 of 1), SessionStarted(1), IterationStarted(1 attempt 1) ! launch
    0.0 launched: AgentLaunched(77)
    0.0 start: Started(after crash), AttemptCut(1 attempt 1), IterationStarted(1 attempt 2) ! launch
    0.0 launched: AgentLaunched(77)
    0.0 exited 0: IterationCompleted(1 succeeded), CheckStarted(asking within 10s) ! ask
    0.0 answered: ConditionsAnswered(1 of 1), ProgressMeasured(1: 10), Completed(the work is complete) ! finish
    ");
}

#[test]
fn missing_objectives_file_causes_one_warning_and_refuses_claims() {
    let mut play = Play::new(with_objectives());
    play.start().answers(gone()).launched();
    play.exited(0).answers(gone());
    play.sleep().launched().claimed().answers(gone());
    play.sleep().launched().exited(0).objectives("no boxes\n");
    play.sleep().launched().claimed().objectives("no boxes\n");
    insta::assert_snapshot!(play.log(), @"
    0.0 start: Started(new), CheckStarted(asking within 10s) ! ask
    0.0 answered: ConditionsAnswered(read plan.md: no such file), Warned(the objectives cannot be read, so claims of completion are refused: read plan.md: no such file), SessionStarted(1), IterationStarted(1 attempt 1) ! launch
    0.0 launched: AgentLaunched(77)
    0.0 exited 0: IterationCompleted(1 succeeded), CheckStarted(asking within 10s) ! ask
    0.0 answered: ConditionsAnswered(read plan.md: no such file), WaitStarted(delay 5s)
    5.0 wake: IterationStarted(2 attempt 1) ! launch
    5.0 launched: AgentLaunched(77)
    5.0 claimed: IterationCompleted(2 succeeded, claimed), CheckStarted(asking within 10s) ! ask
    5.0 answered: ConditionsAnswered(read plan.md: no such file), ClaimRefused(the agent's promise: the objectives cannot be read: read plan.md: no such file), WaitStarted(delay 5s)
    10.0 wake: IterationStarted(3 attempt 1) ! launch
    10.0 launched: AgentLaunched(77)
    10.0 exited 0: IterationCompleted(3 succeeded), CheckStarted(asking within 10s) ! ask
    10.0 answered: ConditionsAnswered(0 of 0), Warned(the objectives have no check box, so claims of completion are refused; a check box is `- [ ]` or `- [x]`), WaitStarted(delay 5s)
    15.0 wake: IterationStarted(4 attempt 1) ! launch
    15.0 launched: AgentLaunched(77)
    15.0 claimed: IterationCompleted(4 succeeded, claimed), CheckStarted(asking within 10s) ! ask
    15.0 answered: ConditionsAnswered(0 of 0), ClaimRefused(the agent's promise: there is no check box in the objectives), WaitStarted(delay 5s)
    ");
}
