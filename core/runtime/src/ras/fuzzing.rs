//! Entry points for fuzzers.

use super::protocol::{Command, LONGEST_LINE, Lines, TooLong};

/// A session of a client that sends these bytes in pieces: every line is read, and no client makes this
/// process keep more than one.
///
/// # Panics
/// The answers to the pieces differ from those to the whole.
pub fn session(bytes: &[u8]) {
    let whole = read(bytes, bytes.len().max(1));
    let size = usize::from(bytes.first().copied().unwrap_or(0)) + 1;
    assert_eq!(read(bytes, size), whole);
}

fn read(bytes: &[u8], piece: usize) -> Vec<Command> {
    let (mut lines, mut commands) = (Lines::default(), Vec::new());
    for part in bytes.chunks(piece) {
        lines.push(part);
        loop {
            match lines.take() {
                Ok(Some(line)) => {
                    assert!(line.chars().count() <= LONGEST_LINE);
                    commands.push(Command::parse(&line));
                }
                Ok(None) => break,
                Err(TooLong) => return commands,
            }
        }
    }
    commands
}
