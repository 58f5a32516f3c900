use std::fmt::Write as _;

use leasehold::retry::GiveUp;
use proptest::prelude::*;

use super::*;

const KINDS: [SeamErrorKind; 18] = [
    SeamErrorKind::Connect,
    SeamErrorKind::ConnectTimeout,
    SeamErrorKind::ReadTimeout,
    SeamErrorKind::Read,
    SeamErrorKind::Write,
    SeamErrorKind::RemoteProtocol,
    SeamErrorKind::Pool,
    SeamErrorKind::Deadline,
    SeamErrorKind::Status(429),
    SeamErrorKind::Status(503),
    SeamErrorKind::Status(404),
    SeamErrorKind::Decode,
    SeamErrorKind::Validation,
    SeamErrorKind::NotFound,
    SeamErrorKind::Capacity,
    SeamErrorKind::Cancelled,
    SeamErrorKind::Closed,
    SeamErrorKind::Other,
];

fn outcome(rule: &Rule) -> String {
    let failure = match rule.on_failure {
        OnFailure::Raise(kind) => format!("raised as `{}`", kind.name()),
        OnFailure::Log => "logged; cancelled is raised".to_owned(),
        OnFailure::Swallow => "logged; cancelled too".to_owned(),
    };
    let absence = match rule.on_absence {
        OnAbsence::Failure => "a failure".to_owned(),
        OnAbsence::Success => "success".to_owned(),
        OnAbsence::Raise(kind) => format!("raised as `{}`", kind.name()),
    };
    let capacity = if rule.raised_as(SeamErrorKind::Capacity) == Some(ErrorKind::BindingCapacityExhausted) {
        "; no capacity: `binding_capacity_exhausted`"
    } else {
        ""
    };
    format!("{failure}{capacity} | {absence}")
}

/// The document that shows the table.
fn document() -> String {
    let mut text =
        "# The driver's table\n\nWritten from `crates/leasehold-e2b/src/driver/table.rs`; a test compares the two.\n\n\
        | operation | stage | attempts | delay | tried again on | last failure | confirmed absence |\n\
        | --- | --- | --- | --- | --- | --- | --- |\n"
            .to_owned();
    for rule in &TABLE {
        let on = match rule.retry_on {
            RetryOn::Nothing => "nothing",
            RetryOn::ControlSet => "the control set",
            RetryOn::HealthSet => "the health set",
        };
        let delay = match rule.policy.max_attempts() {
            1 => "–".to_owned(),
            _ => format!("{} ms", rule.policy.delay_after(1).as_millis()),
        };
        writeln!(
            text,
            "| `{}` | `{}` | {} | {delay} | {on} | {} |",
            rule.call.name(),
            rule.stage.name(),
            rule.policy.max_attempts(),
            outcome(rule)
        )
        .unwrap();
    }
    for (name, contains) in [
        ("control", SeamErrorKind::in_control_set as fn(SeamErrorKind) -> bool),
        ("health", SeamErrorKind::in_health_set),
    ] {
        let members: Vec<_> = KINDS
            .into_iter()
            .filter(|kind| contains(*kind))
            .map(|kind| match kind {
                SeamErrorKind::Status(_) => "status 500–599".to_owned(),
                kind => format!("`{}`", kind.exception_type()),
            })
            .collect();
        write!(text, "\nThe {name} set: {}.\n", members.join(", ")).unwrap();
    }
    text
}

#[test]
fn the_document_shows_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/driver-table.md");
    let written = std::fs::read_to_string(path).unwrap_or_default();
    let expected = document();
    assert!(written == expected, "docs/driver-table.md is not the table; it should be:\n{expected}");
}

#[test]
fn no_two_rules_are_about_the_same_call_of_the_same_stage() {
    for (index, rule) in TABLE.iter().enumerate() {
        assert!(TABLE[..index].iter().all(|other| (other.call, other.stage) != (rule.call, rule.stage)), "{rule:?}");
    }
}

#[test]
fn creates_and_initialisation_are_one_shot_whatever_fails() {
    for rule in [CREATE, MAKE_DIR, LIST, REMOVE, EXISTS, SNAPSHOT, CLOSE_AFTER_ACQUIRE, CLOSE_AT_RELEASE] {
        for kind in KINDS {
            let decision = rule.decide(&SeamError::new(kind, "x"), 1);
            assert_eq!(decision, Decision::GiveUp(GiveUp::NotTransient), "{rule:?} {kind:?}");
            assert!(!rule.logs_retries());
        }
    }
}

#[test]
fn the_sets_are_exactly_these() {
    let members = |contains: fn(SeamErrorKind) -> bool| KINDS.map(|kind| u8::from(contains(kind)));
    assert_eq!(members(SeamErrorKind::in_control_set), [1, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(members(SeamErrorKind::in_health_set), [1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    let statuses: Vec<_> =
        [499, 500, 599, 600].into_iter().filter(|status| SeamErrorKind::Status(*status).in_health_set()).collect();
    assert_eq!(statuses, [500, 599]);
}

#[test]
fn effects_follow_from_the_kind() {
    use leasehold::Effect;
    let none = KINDS.map(|kind| u8::from(kind.default_effect() == Effect::None));
    assert_eq!(none, [1, 1, 0, 0, 0, 0, 1, 0, 1, 0, 1, 0, 0, 1, 1, 0, 1, 0]);
    let refused: Vec<_> = [399, 400, 408, 499, 500]
        .into_iter()
        .filter(|status| SeamErrorKind::Status(*status).default_effect() == Effect::None)
        .collect();
    assert_eq!(refused, [400, 499]);
}

#[test]
fn capacity_has_a_meaning_on_create_only() {
    for rule in &TABLE {
        let raised = rule.raised_as(SeamErrorKind::Capacity);
        assert_eq!(raised == Some(ErrorKind::BindingCapacityExhausted), rule.call == Call::Create, "{rule:?}");
    }
}

#[test]
fn cancelled_is_raised_as_itself_except_where_everything_is_swallowed() {
    for rule in &TABLE {
        let expected = (rule.on_failure != OnFailure::Swallow).then_some(ErrorKind::Cancelled);
        assert_eq!(rule.raised_as(SeamErrorKind::Cancelled), expected, "{rule:?}");
    }
}

fn any_rule() -> impl Strategy<Value = Rule> {
    proptest::sample::select(TABLE.to_vec())
}

proptest! {
    #[test]
    fn a_call_is_tried_as_often_as_its_row_says_and_only_on_its_set(
        rule in any_rule(),
        kinds in proptest::collection::vec(proptest::sample::select(KINDS.to_vec()), 10),
    ) {
        let mut made = 0;
        for (kind, attempt) in kinds.iter().zip(1..) {
            made = attempt;
            match rule.decide(&SeamError::new(*kind, "x").with_retry_after(Duration::from_secs(9)), attempt) {
                Decision::RetryAfter(delay) => {
                    prop_assert!(rule.retries(*kind));
                    prop_assert_eq!(delay, rule.policy.delay_after(1), "exact, and Retry-After is not heard");
                }
                Decision::GiveUp(GiveUp::AttemptsSpent) => {
                    prop_assert!(rule.retries(*kind));
                    prop_assert_eq!(attempt, rule.policy.max_attempts());
                    break;
                }
                Decision::GiveUp(bound) => {
                    prop_assert_eq!(bound, GiveUp::NotTransient);
                    prop_assert!(!rule.retries(*kind));
                    break;
                }
            }
        }
        prop_assert!(made <= rule.policy.max_attempts());
    }
}
