//! Which capabilities a sandbox has: six, over its own user namespace only.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

/// What the guest keeps: enough to start processes as other users of the sandbox, to hand files to them and to end them. Nothing that reaches a kernel
/// subsystem (mounts, network, devices, tracing) is among them, so most of what a user namespace opens up for attack is closed again.
pub(super) const KEPT: CapabilitySet = CapabilitySet::SETUID
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::KILL);

/// Reduces this process, and by the bounding set everything it will ever execute, to [`KEPT`].
pub(super) fn reduce() -> Result<(), Errno> {
    clear_ambient_capability_set()?;
    // The numbers are dense from 0; the kernel refuses the first that it does not know.
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match capability_is_in_bounding_set(capability) {
            Ok(true) if !KEPT.contains(capability) => remove_capability_from_bounding_set(capability)?,
            Ok(_) => {}
            Err(Errno::INVAL) => break,
            Err(errno) => return Err(errno),
        }
    }
    set_capabilities(None, CapabilitySets { effective: KEPT, permitted: KEPT, inheritable: CapabilitySet::empty() })
}
