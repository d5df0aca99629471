//! Steps that fail.

use oss_engine::{Error, Event, Fault, Request};

use crate::support::{engine, engine_with, options, story};

#[test]
fn logits_that_are_no_numbers_fail_one_request_alone() {
    let engine = engine_with(options());
    let bad = engine.submit(story("One day", 20).with_fault(Fault::Nan { at: 5 })).unwrap();
    let good = engine.submit(story("Once upon a time", 20)).unwrap();
    let error = bad.collect_all().unwrap_err();
    assert!(matches!(error, Error::Sampling(_)), "{error}");
    let expected = crate::support::engine().generate(story("Once upon a time", 20)).unwrap();
    assert_eq!(good.collect_all().unwrap().ids(), expected.ids());
}

#[test]
fn a_panicking_step_fails_its_requests_and_the_next_one_is_right() {
    let engine = engine_with(options());
    let mut session = engine.session();
    session.generate(story("Once upon a time", 10)).unwrap();
    for at in [0, 3] {
        let error =
            engine.generate(story("One day", 20).with_fault(Fault::Panic { at })).unwrap_err();
        assert!(matches!(&error, Error::Panicked { message } if message == "a fault was injected"));
    }
    let expected = crate::support::engine().generate(story("Once upon a time", 20)).unwrap();
    assert_eq!(engine.generate(story("Once upon a time", 20)).unwrap().ids(), expected.ids());
    assert_eq!(session.generate(story("Once upon a time", 20)).unwrap().ids(), expected.ids());
    assert_eq!(engine.metrics().failed, 2);
}

#[test]
fn a_request_that_was_paused_during_a_panic_goes_on() {
    let options = oss_engine::EngineOptions { stream_events: 4, ..options() };
    let engine = engine_with(options);
    let mut slow = engine.submit(story("Once upon a time", 40)).unwrap();
    let first: Vec<Event> = slow.by_ref().take(1).collect();
    assert!(matches!(first[0], Event::Admitted { .. }));
    crate::support::eventually("the consumer is too slow", || {
        let before = engine.metrics().completion_tokens;
        std::thread::sleep(std::time::Duration::from_millis(30));
        before > 0 && engine.metrics().completion_tokens == before
    });
    let broken = Request::text("One day").with_fault(Fault::Panic { at: 0 });
    engine.generate(broken).unwrap_err();
    let expected = crate::support::engine().generate(story("Once upon a time", 40)).unwrap();
    assert_eq!(slow.collect_all().unwrap().ids(), expected.ids());
}

#[test]
fn a_panicking_constraint_fails_its_own_request() {
    struct Bad;
    impl oss_engine::Constraint for Bad {
        fn mask(&mut self) -> oss_engine::Result<Option<&oss_engine::Mask>> {
            panic!("no grammar")
        }
        fn accept(&mut self, _token: u32) {}
        fn rollback(&mut self, _tokens: usize) {}
    }
    let error = engine().generate(story("One day", 4).constrained(Bad)).unwrap_err();
    assert!(matches!(&error, Error::Panicked { message } if message == "no grammar"), "{error}");
}

#[test]
fn an_error_tells_whether_the_request_is_at_fault_and_which_option() {
    let engine = engine();
    let refused = |request: Request| engine.submit(request).unwrap_err();
    let mut hot = story("Once", 1);
    hot.sampling.top_p = Some(2.0);
    let error = refused(hot);
    assert!(error.is_about_request());
    assert_eq!(error.field(), Some("top_p"));
    let long = refused(Request::tokens(vec![1; engine.context_len() + 1]));
    assert!(long.is_about_request(), "{long}");
    assert_eq!(long.field(), None);
    assert!(!Error::Closed.is_about_request());
    assert!(!Error::Overloaded { got: 1, expected: 1 }.is_about_request());
}

#[test]
fn the_step_thread_goes_round_while_it_is_asked_for_its_pulse() {
    let engine = engine_with(options());
    let first = engine.pulse().unwrap();
    crate::support::eventually("the loop goes round", || engine.pulse().unwrap() > first + 2);
}
