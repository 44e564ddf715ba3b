//! The text protocol of NCCL's RAS, as far as a server hears it: lines, and what each asks for. No input or
//! output here.
//!
//! A client sends lines that end with a line feed, perhaps with a carriage return before it, in capitals or
//! not. Facts are from NCCL's `ras/client.cc` and `ras/client_support.cc` (2.32).

use std::time::Duration;

/// The version of the protocol that servers and clients tell each other.
pub const VERSION: u32 = 2;
/// The most bytes of a line.
pub const LONGEST_LINE: usize = 1024;
/// The longest time that a client may ask for.
const LONGEST_TIMEOUT: u32 = 24 * 3600;

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Tables and sentences.
    #[default]
    Text,
    /// One object of JSON.
    Json,
}

/// A line of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// `CLIENT PROTOCOL n`: a greeting, with the version of the client.
    Hello,
    /// `TIMEOUT s`: how long processes may take to answer; `None`: as long as they want.
    Timeout(Option<Duration>),
    /// `SET FORMAT text` or `json`.
    SetFormat(Format),
    /// `STATUS` or `VERBOSE STATUS`: the state of the job, after which the server closes the connection.
    Status {
        /// More groups of ranks are named one by one.
        is_verbose: bool,
    },
    /// `MONITOR [groups]`: a line for each event from now on.
    Monitor {
        /// True if the group of events about processes that come and go is wanted.
        lifecycle: bool,
    },
    /// Anything else, with the reason for the client.
    Wrong(String),
}

impl Command {
    /// Reads a line without its end.
    pub fn parse(line: &str) -> Self {
        let after = |words: &str| {
            let (head, rest) = (line.get(..words.len())?, &line[words.len()..]);
            head.eq_ignore_ascii_case(words).then_some(rest)
        };
        if after("client protocol ").is_some() {
            Self::Hello
        } else if let Some(rest) = after("timeout ") {
            match rest.trim().parse::<u32>() {
                Ok(0) => Self::Timeout(None),
                Ok(seconds) => Self::Timeout(Some(Duration::from_secs(seconds.min(LONGEST_TIMEOUT).into()))),
                Err(_) => Self::Wrong(format!("Invalid timeout value {}", plain(rest))),
            }
        } else if let Some(rest) = after("set format ") {
            match rest.trim().to_ascii_lowercase().as_str() {
                "text" => Self::SetFormat(Format::Text),
                "json" => Self::SetFormat(Format::Json),
                _ => Self::Wrong(format!("Invalid format {}", plain(rest))),
            }
        } else if after("status") == Some("") {
            Self::Status { is_verbose: false }
        } else if after("verbose status") == Some("") {
            Self::Status { is_verbose: true }
        } else if let Some(rest) = after("monitor").filter(|rest| rest.is_empty() || rest.starts_with(' ')) {
            monitor(rest)
        } else {
            Self::Wrong(format!("Unknown command {}", plain(line)))
        }
    }
}

/// Reads the groups of events behind `MONITOR`: `lifecycle`, `trace` or `all`, with commas between them.
fn monitor(groups: &str) -> Command {
    let mut lifecycle = groups.trim().is_empty();
    for group in groups.split(',').map(str::trim).filter(|group| !group.is_empty()) {
        match group.to_ascii_lowercase().as_str() {
            "lifecycle" | "all" => lifecycle = true,
            "trace" => {}
            _ => return Command::Wrong(format!("Invalid event group '{}'", plain(group))),
        }
    }
    Command::Monitor { lifecycle }
}

/// A client's text as it may be sent back: printable, and not long.
fn plain(text: &str) -> String {
    text.chars().take(100).map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

/// The lines of a client, as their bytes come.
#[derive(Debug, Default)]
pub struct Lines {
    bytes: Vec<u8>,
}

impl Lines {
    /// Takes bytes that have come.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next whole line out, without its end; `Err` if it is longer than a line may be.
    pub fn take(&mut self) -> Result<Option<String>, TooLong> {
        let end = self.bytes.iter().position(|byte| *byte == b'\n');
        if end.unwrap_or(self.bytes.len()) > LONGEST_LINE {
            return Err(TooLong);
        }
        let Some(end) = end else { return Ok(None) };
        let mut line: Vec<u8> = self.bytes.drain(..=end).collect();
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Ok(Some(String::from_utf8_lossy(&line).into_owned()))
    }
}

/// A line that is longer than [`LONGEST_LINE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn commands_are_read_as_nccl_reads_them() {
        let seconds = |seconds| Command::Timeout(Some(Duration::from_secs(seconds)));
        let cases = [
            ("CLIENT PROTOCOL 2", Command::Hello),
            ("client protocol 99", Command::Hello),
            ("TIMEOUT 5", seconds(5)),
            ("timeout 0", Command::Timeout(None)),
            ("Timeout 4294967295", seconds(LONGEST_TIMEOUT.into())),
            ("SET FORMAT JSON", Command::SetFormat(Format::Json)),
            ("set format text", Command::SetFormat(Format::Text)),
            ("STATUS", Command::Status { is_verbose: false }),
            ("verbose Status", Command::Status { is_verbose: true }),
            ("MONITOR", Command::Monitor { lifecycle: true }),
            ("monitor trace", Command::Monitor { lifecycle: false }),
            ("monitor trace,LIFECYCLE", Command::Monitor { lifecycle: true }),
            ("monitor all", Command::Monitor { lifecycle: true }),
        ];
        for (line, command) in cases {
            assert_eq!(Command::parse(line), command, "{line}");
        }
        for wrong in
            ["", "STATUS now", "timeout -1", "timeout x", "set format xml", "monitor noise", "monitors"]
        {
            assert!(matches!(Command::parse(wrong), Command::Wrong(_)), "{wrong}");
        }
        let http = Command::parse("GET /metrics HTTP/1.1");
        assert_eq!(http, Command::Wrong("Unknown command GET /metrics HTTP/1.1".into()));
    }

    #[test]
    fn a_line_may_come_in_pieces_and_must_end() {
        let mut lines = Lines::default();
        lines.push(b"STA");
        assert_eq!(lines.take(), Ok(None));
        lines.push(b"TUS\r\nTIMEOUT 3\nrest");
        assert_eq!(lines.take(), Ok(Some("STATUS".into())));
        assert_eq!(lines.take(), Ok(Some("TIMEOUT 3".into())));
        assert_eq!(lines.take(), Ok(None));
        lines.push(&[b'x'; LONGEST_LINE]);
        assert_eq!(lines.take(), Err(TooLong));
    }

    proptest! {
        #[test]
        fn any_bytes_are_lines_or_too_long(
            bytes in proptest::collection::vec(any::<u8>(), 0..3000),
            piece in 1usize..400,
        ) {
            let whole = split(&bytes, bytes.len().max(1));
            prop_assert_eq!(&split(&bytes, piece), &whole, "the pieces make no difference");
            for line in whole.iter().flatten() {
                if let Command::Wrong(why) = Command::parse(line) {
                    prop_assert!(why.chars().all(|letter| !letter.is_control()) && why.chars().count() < 140);
                }
            }
        }
    }

    /// The lines of bytes that come in pieces; the last is `None` if one was too long.
    fn split(bytes: &[u8], piece: usize) -> Vec<Option<String>> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for part in bytes.chunks(piece) {
            lines.push(part);
            loop {
                match lines.take() {
                    Ok(Some(line)) => found.push(Some(line)),
                    Ok(None) => break,
                    Err(TooLong) => {
                        found.push(None);
                        return found;
                    }
                }
            }
        }
        found
    }
}
