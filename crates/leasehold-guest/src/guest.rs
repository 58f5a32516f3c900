//! What all parts of the guest share: the sandbox's identity, its users, its processes.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use crate::identity::{Identity, IdentityError};
use crate::process::Processes;
use crate::users::Users;

/// The state of a running guest.
#[derive(Debug)]
pub struct Guest {
    identity_file: PathBuf,
    identity: RwLock<Arc<Identity>>,
    /// Who can act in the sandbox.
    pub users: Users,
    /// What runs in it.
    pub processes: Processes,
}

impl Guest {
    /// Reads the identity and starts from it.
    ///
    /// # Errors
    /// When the identity cannot be used.
    pub fn new(identity_file: PathBuf, users: Users, processes: Processes) -> Result<Self, IdentityError> {
        let identity = RwLock::new(Arc::new(Identity::load(&identity_file)?));
        Ok(Self { identity_file, identity, users, processes })
    }

    /// The identity as of now. Ask again for each request: it changes when the sandbox is restored or cloned.
    #[must_use]
    pub fn identity(&self) -> Arc<Identity> {
        Arc::clone(&self.identity.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the identity again. On failure the one before stays.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn reload(&self) -> Result<(), IdentityError> {
        let identity = Arc::new(Identity::load(&self.identity_file)?);
        *self.identity.write().unwrap_or_else(PoisonError::into_inner) = identity;
        Ok(())
    }
}
