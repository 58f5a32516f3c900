//! The Leasehold contract as named cases, and a harness that lists leftovers.
