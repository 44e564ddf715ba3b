//! Other programs that connect to a port by mistake, told by their first bytes.

/// The protocol that bytes begin with, in words such as "an HTTP request"; `None` if it is none of those.
pub fn protocol(bytes: &[u8]) -> Option<&'static str> {
    const METHODS: [&[u8]; 8] =
        [b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"CONNECT ", b"PRI * HTTP/2"];
    if METHODS.iter().any(|method| bytes.starts_with(method)) {
        return Some("an HTTP request");
    }
    // A record of a handshake (RFC 8446, 5.1): type 22, then the major version 3.
    if bytes.starts_with(&[22, 3]) {
        return Some("a TLS handshake");
    }
    bytes.starts_with(b"SSH-").then_some("the greeting of an SSH client")
}

/// The reason to drop a connection that says something else than a greeting.
pub fn reason(protocol: &str) -> String {
    format!("it sends {protocol}: does a scraper of metrics or a probe of health have this port?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_are_wrong_here_are_known_by_their_first_words() {
        assert_eq!(protocol(b"GET /metrics HTTP/1.1\r\nHost: a"), Some("an HTTP request"));
        assert_eq!(protocol(b"POST /"), Some("an HTTP request"));
        assert_eq!(protocol(&[22, 3, 1, 2, 0, 1]), Some("a TLS handshake"));
        assert_eq!(protocol(b"SSH-2.0-x"), Some("the greeting of an SSH client"));
        for other in [&b""[..], b"GETTER", b"HAWSboot", b"G", &[22]] {
            assert_eq!(protocol(other), None);
        }
    }
}
