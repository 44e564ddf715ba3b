//! Messages of the protocol and texts of rules as bytes. What comes from other ranks is checked.

use std::sync::Arc;

use hawser_plugin::tuner::SettingsFile;

use super::protocol::{Body, Message, Outcome};
use crate::record;

/// Longest text of a refusal that travels, in bytes.
const LONGEST_WHY: usize = 64 << 10;

/// The most bytes of rules, with the names of their files, that a change may have. A rank
/// takes up to a hundred times as much memory while it reads them.
pub const MOST_RULES: usize = 1 << 20;

/// A message as bytes. Texts of refusals that are too long are cut.
pub fn encode(message: &Message) -> Vec<u8> {
    let mut message = message.clone();
    match &mut message.body {
        Body::Refused(why)
        | Body::Drop(why)
        | Body::Broken(why)
        | Body::Outcome(Outcome::Unchanged(why) | Outcome::Unknown(why)) => {
            why.truncate(why.floor_char_boundary(LONGEST_WHY));
        }
        Body::Propose(_)
        | Body::Stage(_)
        | Body::Staged(_)
        | Body::Ask(_)
        | Body::Promised(_)
        | Body::Commit(_)
        | Body::Heard
        | Body::Outcome(Outcome::Changed(_))
        | Body::Farewell => {}
    }
    record::encode(&message)
}

/// Inverse of [`encode`]; None for what no rank sends.
pub fn decode(bytes: &[u8]) -> Option<Message> {
    record::decode(bytes)
}

/// True if rank 0 gets the message in its part as coordinator; all others are for a member.
pub fn is_for_coordinator(body: &Body) -> bool {
    matches!(body, Body::Propose(_) | Body::Staged(_) | Body::Refused(_) | Body::Promised(_) | Body::Heard)
}

/// The content of a change that brings no rules: calls are chosen as if their buffers were registered.
pub const REGISTERED: &[u8] = b"registered buffers";

/// The content of a change: names and texts of files.
pub fn pack(files: &[SettingsFile]) -> Arc<[u8]> {
    let files: Vec<(&str, &str)> = files.iter().map(|file| (&*file.name, &*file.text)).collect();
    record::encode(&files).into()
}

/// Inverse of [`pack`]; None for bytes that are no files.
pub fn unpack(bytes: &[u8]) -> Option<Vec<SettingsFile>> {
    let files: Vec<(String, String)> = record::decode(bytes)?;
    Some(files.into_iter().map(|(name, text)| SettingsFile { name, text }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_messages_travel() {
        let why = || "rank 3: nö".to_owned();
        let bodies = [
            Body::Propose(Arc::from(&b"a\0b"[..])),
            Body::Stage(Arc::from(&b""[..])),
            Body::Staged(u64::MAX),
            Body::Refused(why()),
            Body::Ask(16),
            Body::Promised(7),
            Body::Commit(1 << 40),
            Body::Heard,
            Body::Drop(why()),
            Body::Outcome(Outcome::Changed(5)),
            Body::Outcome(Outcome::Unchanged(why())),
            Body::Outcome(Outcome::Unknown(why())),
            Body::Broken(why()),
            Body::Farewell,
        ];
        for body in bodies {
            let message = Message { number: 77, body };
            let bytes = encode(&message);
            assert_eq!(decode(&bytes), Some(message));
            assert!((0..bytes.len()).all(|short| decode(&bytes[..short]).is_none()));
        }
        assert_eq!(decode(&[0; 40]), None);
        let long = Message { number: 1, body: Body::Drop("ö".repeat(LONGEST_WHY)) };
        assert!(matches!(decode(&encode(&long)), Some(Message { body: Body::Drop(why), .. })
            if why.len() == LONGEST_WHY));
    }

    #[test]
    fn files_travel_and_what_is_cut_is_refused() {
        let file = |name: &str, text: &str| SettingsFile { name: name.into(), text: text.into() };
        let files = vec![file("a.toml", "[[rule]]\n"), file("b.csv", "")];
        let bytes = pack(&files);
        assert_eq!(unpack(&bytes), Some(files));
        assert_eq!(unpack(&pack(&[])), Some(Vec::new()));
        assert!((0..bytes.len()).all(|short| unpack(&bytes[..short]).is_none()));
        assert_eq!(unpack(&u64::MAX.to_le_bytes()), None);
        let name_is_no_text = [1, 1, 0xff, 0];
        assert_eq!(unpack(&name_is_no_text), None, "a file is not dropped in silence");
        assert_eq!(unpack(REGISTERED), None, "no rules are taken for something else");
    }
}
