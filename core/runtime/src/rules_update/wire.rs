//! Messages of the protocol and texts of rules as bytes. What comes from other ranks is checked.

use std::sync::Arc;

use hawser_plugin::tuner::SettingsFile;

use super::protocol::{Body, Message, Outcome};

/// Longest text of a refusal that travels, in bytes.
const LONGEST_WHY: usize = 64 << 10;

/// The most bytes of rules, with the names of their files, that a change may have. A rank
/// takes up to a hundred times as much memory while it reads them.
pub const MOST_RULES: usize = 1 << 20;

/// A message as bytes.
pub fn encode(message: &Message) -> Vec<u8> {
    let (kind, number, rest): (u8, u64, &[u8]) = match &message.body {
        Body::Propose(content) => (1, 0, content),
        Body::Stage(content) => (2, 0, content),
        Body::Staged(digest) => (3, *digest, &[]),
        Body::Refused(why) => (4, 0, why.as_bytes()),
        Body::Ask(margin) => (5, *margin, &[]),
        Body::Promised(fence) => (6, *fence, &[]),
        Body::Commit(at) => (7, *at, &[]),
        Body::Heard => (8, 0, &[]),
        Body::Drop(why) => (9, 0, why.as_bytes()),
        Body::Outcome(Outcome::Changed(at)) => (10, *at, &[]),
        Body::Outcome(Outcome::Unchanged(why)) => (11, 0, why.as_bytes()),
        Body::Outcome(Outcome::Unknown(why)) => (12, 0, why.as_bytes()),
        Body::Broken(why) => (13, 0, why.as_bytes()),
        Body::Farewell => (14, 0, &[]),
    };
    let is_content = matches!(message.body, Body::Propose(_) | Body::Stage(_));
    let rest = if is_content { rest } else { &rest[..rest.len().min(LONGEST_WHY)] };
    [&[kind][..], &message.number.to_le_bytes(), &number.to_le_bytes(), rest].concat()
}

/// Inverse of [`encode`]; None for what no rank sends.
pub fn decode(bytes: &[u8]) -> Option<Message> {
    let (kind, rest) = bytes.split_first()?;
    let (change, rest) = rest.split_first_chunk()?;
    let (number, rest) = rest.split_first_chunk()?;
    let number = u64::from_le_bytes(*number);
    let text = || String::from_utf8_lossy(rest).into_owned();
    let body = match kind {
        1 => Body::Propose(rest.into()),
        2 => Body::Stage(rest.into()),
        3 => Body::Staged(number),
        4 => Body::Refused(text()),
        5 => Body::Ask(number),
        6 => Body::Promised(number),
        7 => Body::Commit(number),
        8 => Body::Heard,
        9 => Body::Drop(text()),
        10 => Body::Outcome(Outcome::Changed(number)),
        11 => Body::Outcome(Outcome::Unchanged(text())),
        12 => Body::Outcome(Outcome::Unknown(text())),
        13 => Body::Broken(text()),
        14 => Body::Farewell,
        _ => return None,
    };
    Some(Message { number: u64::from_le_bytes(*change), body })
}

/// Whether rank 0 gets the message in its part as coordinator; all others are for a member.
pub fn is_for_coordinator(body: &Body) -> bool {
    matches!(body, Body::Propose(_) | Body::Staged(_) | Body::Refused(_) | Body::Promised(_) | Body::Heard)
}

/// The content of a change: names and texts of files.
pub fn pack(files: &[SettingsFile]) -> Arc<[u8]> {
    let mut bytes = Vec::new();
    for part in files.iter().flat_map(|file| [&file.name, &file.text]) {
        bytes.extend((part.len() as u64).to_le_bytes());
        bytes.extend(part.as_bytes());
    }
    bytes.into()
}

/// Inverse of [`pack`].
pub fn unpack(mut bytes: &[u8]) -> Option<Vec<SettingsFile>> {
    let mut files = Vec::new();
    while !bytes.is_empty() {
        files.push(SettingsFile { name: take_text(&mut bytes)?, text: take_text(&mut bytes)? });
    }
    Some(files)
}

/// Takes a text and its length from the front of `bytes`.
fn take_text(bytes: &mut &[u8]) -> Option<String> {
    let (length, rest) = bytes.split_first_chunk()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (text, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    String::from_utf8(text.to_vec()).ok()
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
            assert!((0..17).all(|short| decode(&bytes[..short]).is_none()));
        }
        assert_eq!(decode(&[0; 40]), None);
    }

    #[test]
    fn files_travel_and_what_is_cut_is_refused() {
        let file = |name: &str, text: &str| SettingsFile { name: name.into(), text: text.into() };
        let files = vec![file("a.toml", "[[rule]]\n"), file("b.csv", "")];
        let bytes = pack(&files);
        assert_eq!(unpack(&bytes), Some(files));
        assert_eq!(unpack(&[]), Some(Vec::new()));
        let whole = [16 + 6 + 9, bytes.len()];
        for short in 1..bytes.len() {
            assert_eq!(unpack(&bytes[..short]).is_some(), whole.contains(&short), "{short}");
        }
        assert_eq!(unpack(&u64::MAX.to_le_bytes()), None);
        let name_is_no_text = [&1u64.to_le_bytes()[..], &[0xff]].concat();
        assert_eq!(unpack(&name_is_no_text), None, "a file is not dropped in silence");
    }
}
