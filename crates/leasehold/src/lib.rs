//! The contract of Leasehold: specs, refs, layout, lease, errors, retry as data, capability flags. No I/O, no runtime.
