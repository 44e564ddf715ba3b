//! The cases of a net: what it has to do right.
//!
//! | file | holds |
//! |---|---|
//! | `wire` | connections, memory and an engine that moves messages |
//! | `setup` | names, properties, contexts, connections |
//! | `transfer` | messages |
//! | `faults` | closing, lost peers, nonsense |

mod faults;
mod setup;
mod transfer;
mod wire;

use std::sync::{Arc, PoisonError, RwLock};

use hawser_plugin::Net;

use super::case::{Case, Options, only};

/// The cases, in the order in which they run.
pub const CASES: &[Case<dyn Net>] = &[
    Case {
        name: "name_is_constant",
        wants: "one name that fits into NCCL_NET",
        run: setup::name_is_constant,
    },
    Case {
        name: "properties_are_sane",
        wants: "devices with host memory, limits above 0 and the same answers each time",
        run: setup::properties_are_sane,
    },
    Case {
        name: "devices_are_checked",
        wants: "an error for a device that does not exist",
        run: setup::devices_are_checked,
    },
    Case {
        name: "messages_of_all_sizes",
        wants: "0 bytes to several MiB, with the sizes told at both ends",
        run: transfer::messages_of_all_sizes,
    },
    Case {
        name: "receives_may_be_longer",
        wants: "a short message in a long receive, and its true size",
        run: transfer::receives_may_be_longer,
    },
    Case {
        name: "many_requests_in_flight",
        wants: "MAX_REQUESTS requests at once, tested oldest first",
        run: transfer::many_requests_in_flight,
    },
    Case {
        name: "sends_may_come_first",
        wants: "sends before any receive: none blocks, none is lost",
        run: transfer::sends_may_come_first,
    },
    Case {
        name: "receives_may_come_first",
        wants: "receives that wait for their sends",
        run: transfer::receives_may_come_first,
    },
    Case {
        name: "order_is_kept",
        wants: "messages of mixed sizes in the order in which they were sent",
        run: transfer::order_is_kept,
    },
    Case {
        name: "grouped_receives",
        wants: "several receives in one request, picked by tag, if max_recvs offers it",
        run: transfer::grouped_receives,
    },
    Case {
        name: "groups_with_equal_tags",
        wants: "equal tags in a group filled in order",
        run: transfer::groups_with_equal_tags,
    },
    Case {
        name: "optional_completion",
        wants: "the data, even if the request is over before they are there",
        run: transfer::optional_completion,
    },
    Case { name: "flushes_end", wants: "a flush that comes to an end", run: transfer::flushes_end },
    Case {
        name: "many_connections",
        wants: "connections that come up in any order and do not mix",
        run: setup::many_connections,
    },
    Case {
        name: "both_directions_at_once",
        wants: "long messages there and back at the same time",
        run: transfer::both_directions_at_once,
    },
    Case {
        name: "ends_in_two_threads",
        wants: "sender and receiver in threads of their own",
        run: transfer::ends_in_two_threads,
    },
    Case {
        name: "registrations_come_and_go",
        wants: "memory registered, used and deregistered many times",
        run: setup::registrations_come_and_go,
    },
    Case {
        name: "other_memory_is_refused",
        wants: "Unsupported for kinds of memory that the properties do not name",
        run: setup::other_memory_is_refused,
    },
    Case {
        name: "virtual_devices",
        wants: "a virtual device that carries messages, or Unsupported",
        run: setup::virtual_devices,
    },
    Case {
        name: "attributes_are_hints",
        wants: "messages, whatever the attributes were",
        run: setup::attributes_are_hints,
    },
    Case {
        name: "contexts_side_by_side",
        wants: "communicators that do not disturb each other",
        run: setup::contexts_side_by_side,
    },
    Case {
        name: "opened_again_and_again",
        wants: "a context that can be opened and dropped many times",
        run: setup::opened_again_and_again,
    },
    Case {
        name: "listeners_may_be_dropped",
        wants: "listeners and connectors that go away before the connection is up",
        run: faults::listeners_may_be_dropped,
    },
    Case {
        name: "garbage_handles",
        wants: "an error or patience for a handle that is none, and a listener that survives it",
        run: faults::garbage_handles,
    },
    Case {
        name: "sent_data_arrive_after_closing",
        wants: "what was sent to arrive although the sender is gone",
        run: faults::sent_data_arrive_after_closing,
    },
    Case {
        name: "closing_early",
        wants: "both ends dropped with requests in flight, and a plugin that works on",
        run: faults::closing_early,
    },
    Case {
        name: "a_lost_sender_is_an_error",
        wants: "an error at a receiver that waits for a sender that is gone",
        run: faults::a_lost_sender_is_an_error,
    },
    Case {
        name: "a_lost_receiver_is_an_error",
        wants: "an error at a sender whose receiver is gone",
        run: faults::a_lost_receiver_is_an_error,
    },
    Case {
        name: "too_long_messages_are_refused",
        wants: "an error for a message that is longer than its receive, and no byte past the receive",
        run: faults::too_long_messages_are_refused,
    },
];

/// Runs one case.
///
/// # Panics
/// If it does not come out as expected.
pub fn one(name: &str, plugin: Arc<dyn Net>, options: &Options) {
    // A plugin may keep virtual devices for its process until another communicator begins, so no other case
    // begins one beside that of virtual devices.
    static OTHERS: RwLock<()> = RwLock::new(());
    let is_alone = name == "virtual_devices";
    let _alone = is_alone.then(|| OTHERS.write().unwrap_or_else(PoisonError::into_inner));
    let _beside = (!is_alone).then(|| OTHERS.read().unwrap_or_else(PoisonError::into_inner));
    only(CASES, name, plugin, options);
}
