//! Net plugin over TCP: several sockets and threads per connection, lost sockets are re-dialled.
