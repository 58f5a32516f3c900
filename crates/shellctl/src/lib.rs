//! Wire types of the shellctl command daemon, and an async client for it.
