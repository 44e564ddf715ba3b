//! The numbers of operations: collectives are counted from 0 on, batches of messages by themselves.

/// Set in the numbers of batches of messages, which only their two ranks count.
pub const MESSAGES: u64 = 1 << 63;

/// "operation 7", or "messages 7": what a number in a report means.
pub fn operation(number: u64) -> String {
    match number & MESSAGES {
        0 => format!("operation {number}"),
        _ => format!("messages {}", number & !MESSAGES),
    }
}

/// The same in few letters: "op 7" or "messages 7".
pub fn op(number: u64) -> String {
    operation(number).replace("operation", "op")
}
