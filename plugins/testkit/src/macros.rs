//! The one-line suites.

/// A `#[test]` for each case of [`conformance::net()`](crate::conformance::net()).
#[macro_export]
macro_rules! net_suite {
    ($make:expr $(, known_failures: [$($known:literal),* $(,)?])? $(,)?) => {
        $crate::suite! {
            net, $make, [$($($known),*)?],
            name_is_constant properties_are_sane devices_are_checked messages_of_all_sizes receives_may_be_longer
            many_requests_in_flight sends_may_come_first receives_may_come_first order_is_kept grouped_receives
            groups_with_equal_tags optional_completion flushes_end many_connections both_directions_at_once
            ends_in_two_threads registrations_come_and_go other_memory_is_refused virtual_devices attributes_are_hints
            contexts_side_by_side opened_again_and_again listeners_may_be_dropped garbage_handles
            sent_data_arrive_after_closing closing_early a_lost_sender_is_an_error a_lost_receiver_is_an_error
            too_long_messages_are_refused
        }
    };
}

/// A `#[test]` for each case of [`conformance::collnet()`](crate::conformance::collnet()).
#[macro_export]
macro_rules! collnet_suite {
    ($make:expr $(, known_failures: [$($known:literal),* $(,)?])? $(,)?) => {
        $crate::suite! {
            collnet, $make, [$($($known),*)?],
            name_is_constant properties_are_sane support_is_constant one_rank three_ranks many_requests_in_flight
            gathers_and_scatters closing_early
        }
    };
}

/// A `#[test]` for each case of [`conformance::tuner()`](crate::conformance::tuner()).
#[macro_export]
macro_rules! tuner_suite {
    ($make:expr $(, known_failures: [$($known:literal),* $(,)?])? $(,)?) => {
        $crate::suite! {
            tuner, $make, [$($($known),*)?],
            name_is_constant every_question_is_answered ranks_agree impossible_stays_impossible chunks_are_sane
            many_threads_ask opened_again_and_again
        }
    };
}

/// A `#[test]` for each case of [`conformance::profiler()`](crate::conformance::profiler()).
#[macro_export]
macro_rules! profiler_suite {
    ($make:expr $(, known_failures: [$($known:literal),* $(,)?])? $(,)?) => {
        $crate::suite! {
            profiler, $make, [$($($known),*)?],
            name_is_constant mask_is_sane a_whole_operation unwanted_and_unknown_events events_out_of_order
            many_threads_report communicators_side_by_side closing_with_open_events
        }
    };
}

/// A `#[test]` for each case of [`conformance::env()`](crate::conformance::env()).
#[macro_export]
macro_rules! env_suite {
    ($make:expr $(, known_failures: [$($known:literal),* $(,)?])? $(,)?) => {
        $crate::suite! {
            env, $make, [$($($known),*)?],
            name_is_constant answers_are_constant odd_names_are_not_set many_threads_ask opened_again
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! suite {
    ($kind:ident, $make:expr, $known:tt, $($case:ident)+) => {
        $(
            #[test]
            fn $case() {
                let options = $crate::conformance::Options::default().known_failures(&$known);
                $crate::conformance::$kind::one(stringify!($case), $make, &options);
            }
        )+

        #[test]
        fn the_suite_is_complete() {
            let here = [$(stringify!($case)),+];
            let cases: Vec<&str> = $crate::conformance::$kind::CASES.iter().map(|case| case.name).collect();
            assert_eq!(here[..], cases[..]);
        }
    };
}
