//! Conformance suites that a plugin author runs in one line.
