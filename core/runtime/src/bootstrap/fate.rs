//! The fate of a rank, as a frame between watchers.

use std::time::Duration;

use hawser_base::error::Result;
use hawser_base::liveness::End;

use super::wire::{Fields, Kind, frame_bytes, malformed};

/// Bytes of the longest reason that is told.
pub(super) const TEXT_LIMIT: usize = 2 << 10;

const LEFT: u8 = 0;
const DIED: u8 = 1;
const FAILED: u8 = 2;
const OUT_OF_REACH: u8 = 3;

/// A frame that says what became of a rank.
pub(super) fn encode(rank: u32, end: &End, age: Duration) -> Vec<u8> {
    let (code, text, because_of) = match end {
        End::Left(how) => (LEFT, how, None),
        End::Died(how) => (DIED, how, None),
        End::OutOfReach(how) => (OUT_OF_REACH, how, None),
        End::Failed { text, because_of } => (FAILED, text, *because_of),
    };
    let mut payload = vec![code];
    payload.extend_from_slice(&u32::try_from(age.as_millis()).unwrap_or(u32::MAX).to_le_bytes());
    payload.extend_from_slice(&because_of.unwrap_or(u32::MAX).to_le_bytes());
    payload.extend_from_slice(cut(text, TEXT_LIMIT).as_bytes());
    frame_bytes(Kind::Fate, u64::from(rank), &payload).unwrap_or_default()
}

/// Reads the payload of a frame of [`encode`].
pub(super) fn decode(rank: u64, payload: &[u8]) -> Result<(u32, End, Duration)> {
    let mut fields = Fields::new(payload);
    let (code, age, because_of) = (fields.u8()?, fields.u32()?, fields.u32()?);
    let text = String::from_utf8_lossy(fields.rest()).into_owned();
    let end = match code {
        LEFT => End::Left(text),
        DIED => End::Died(text),
        OUT_OF_REACH => End::OutOfReach(text),
        FAILED => End::Failed { text, because_of: (because_of != u32::MAX).then_some(because_of) },
        _ => return Err(malformed(format!("fate {code}"))),
    };
    let rank = u32::try_from(rank).map_err(|_| malformed("fate of no rank"))?;
    Ok((rank, end, Duration::from_millis(age.into())))
}

/// The beginning of a text, of at most so many bytes.
pub(super) fn cut(text: &str, most: usize) -> &str {
    let end = (0..=text.len().min(most)).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::super::wire::HEADER;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fates_survive_the_wire_and_nonsense_is_refused(
            rank: u32, age: u32, text in ".{0,40}", because_of: Option<u16>, bytes: Vec<u8>
        ) {
            let failed = End::Failed { text: text.clone(), because_of: because_of.map(u32::from) };
            let gone = [End::Left, End::Died, End::OutOfReach].map(|end| end(text.clone()));
            for end in gone.into_iter().chain([failed]) {
                let frame = encode(rank, &end, Duration::from_millis(age.into()));
                let payload = &frame[HEADER..];
                let age = Duration::from_millis(age.into());
                prop_assert_eq!(decode(rank.into(), payload).unwrap(), (rank, end, age));
            }
            let _ = decode(7, &bytes);
        }
    }
}
