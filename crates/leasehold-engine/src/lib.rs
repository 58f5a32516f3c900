//! Linux engines and snapshot storage of Leasehold: namespaces, overlay layers, cgroups.
