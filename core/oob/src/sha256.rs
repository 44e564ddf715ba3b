//! Sums and keyed sums (SHA-256, FIPS 180-4; HMAC, RFC 2104), by the `ring` crate, which takes the
//! processor's own instructions for them.

use ring::{digest, hkdf, hmac};

/// Bytes of a sum, and of a key.
pub const BYTES: usize = 32;

/// The sum of some bytes.
pub fn hash(bytes: &[u8]) -> [u8; BYTES] {
    hash_all([bytes])
}

/// The sum of several parts, one behind the other.
pub fn hash_all<T: AsRef<[u8]>>(parts: impl IntoIterator<Item = T>) -> [u8; BYTES] {
    let mut context = digest::Context::new(&digest::SHA256);
    parts.into_iter().for_each(|part| context.update(part.as_ref()));
    whole(context.finish().as_ref())
}

/// The sum of some bytes that only who has the key can make.
pub fn mac(key: &[u8], bytes: &[u8]) -> [u8; BYTES] {
    whole(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), bytes).as_ref())
}

/// True if a keyed sum of some bytes is right. Takes the same time whichever of its bytes is wrong.
pub fn verify(key: &[u8], bytes: &[u8], sum: &[u8; BYTES]) -> bool {
    hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, key), bytes, sum).is_ok()
}

/// The keys for several purposes that follow from a secret and a salt (HKDF, RFC 5869).
pub struct Derived(hkdf::Prk);

impl Derived {
    /// Begins with a secret and a salt, which may be known to everybody.
    pub fn new(salt: &[u8], secret: &[u8]) -> Self {
        Self(hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(secret))
    }

    /// The key for a purpose.
    pub fn key(&self, purpose: &str) -> [u8; BYTES] {
        let mut key = [0; BYTES];
        let info = [purpose.as_bytes()];
        let filled = self.0.expand(&info, hkdf::HKDF_SHA256).and_then(|bytes| bytes.fill(&mut key));
        assert!(filled.is_ok(), "a key is as long as a sum");
        key
    }
}

fn whole(sum: &[u8]) -> [u8; BYTES] {
    sum.first_chunk().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The examples of FIPS 180-4, RFC 4231 (case 2) and RFC 5869 (case 3).
    #[test]
    fn sums_are_those_of_the_standards() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(&hash(b"abc")), abc);
        assert_eq!(hex(&hash_all(["a", "", "bc"])), abc);
        let keyed = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(hex(&mac(b"Jefe", b"what do ya want for nothing?")), keyed);
        let derived = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d";
        assert_eq!(hex(&Derived::new(b"", &[0x0b; 22]).key("")), derived);
        let right = mac(b"key", b"text");
        let wrong = right.map(|byte| byte ^ 0x80);
        assert!(verify(b"key", b"text", &right) && !verify(b"key", b"text", &wrong));
        assert!(!verify(b"other", b"text", &right) && !verify(b"key", b"texT", &right));
    }
}
