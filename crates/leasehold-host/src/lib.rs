//! E2B-compatible sandbox host of Leasehold: API, edge proxy, sandbox state machine, ledger.
