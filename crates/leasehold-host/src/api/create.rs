//! What a create asks for, checked: from wire fields to an [`Origin`], or a refusal that names the field.

use std::collections::BTreeMap;

use serde_json::Value;

use super::error::{ApiError, ApiResult};
use super::wire::{Network, NewSandbox};
use crate::ids::{NAMESPACE, SandboxId, TemplateRef, random_secret};
use crate::record::Origin;
use crate::secret::Secret;
use crate::world::World;

/// Names of the built-in template: `base` is what E2B's clients ask for by default.
pub(crate) const BUILT_IN: [&str; 2] = ["base", "host"];

/// The two generations of the create route differ in defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Generation {
    /// 15 s, and secured only if asked.
    V1,
    /// 300 s, and always secured.
    V2,
}

impl Generation {
    fn default_timeout_s(self) -> i64 {
        match self {
            Self::V1 => 15,
            Self::V2 => 300,
        }
    }
}

/// Checks a timeout that begins or prolongs a life.
pub(crate) fn timeout(seconds: i64, max_s: i64) -> ApiResult<i64> {
    if seconds <= 0 {
        return Err(ApiError::bad("Timeout must be greater than 0"));
    }
    at_most(seconds, max_s)
}

/// Checks a timeout that is set: 0 is "now".
pub(crate) fn new_timeout(seconds: i64, max_s: i64) -> ApiResult<i64> {
    if seconds < 0 {
        return Err(ApiError::bad("Timeout must not be negative"));
    }
    at_most(seconds, max_s)
}

fn at_most(seconds: i64, max_s: i64) -> ApiResult<i64> {
    if seconds > max_s {
        let limit = if max_s % 3600 == 0 { format!("{} hours", max_s / 3600) } else { format!("{max_s} seconds") };
        return Err(ApiError::bad(format!("Timeout cannot be greater than {limit}")));
    }
    Ok(seconds)
}

/// Reads a template reference.
pub(crate) fn reference(text: &str) -> ApiResult<TemplateRef> {
    TemplateRef::parse(text).map_err(|why| ApiError::bad(format!("Invalid template reference: {text:?}: {why}")))
}

pub(crate) fn is_built_in(reference: &TemplateRef) -> bool {
    let ours = reference.namespace.as_deref().is_none_or(|namespace| namespace == NAMESPACE);
    ours && reference.tag == crate::ids::DEFAULT_TAG && BUILT_IN.contains(&reference.name.as_str())
}

/// Checks everything, and pins the layers that the sandbox will start from.
///
/// On success the caller owes either a sandbox or [`crate::shelf::Shelf::unpin`].
pub(crate) fn origin(world: &World, new: NewSandbox, generation: Generation) -> ApiResult<Origin> {
    refuse_unsupported(&new, generation)?;
    let network = new.network.unwrap_or_default();
    let timeout_s = timeout(new.timeout.unwrap_or(generation.default_timeout_s()), world.settings.max_timeout_s)?;
    let pause_on_timeout = new.auto_pause.unwrap_or(false);
    let pause_keeps_memory = new.auto_pause_memory.unwrap_or(true);
    let auto_resume = new.auto_resume.is_some_and(|resume| resume.enabled);
    if !pause_keeps_memory && !pause_on_timeout {
        return Err(ApiError::bad("autoPauseMemory=false only applies when autoPause is true."));
    }
    if !pause_keeps_memory && auto_resume {
        return Err(ApiError::bad(
            "autoPauseMemory=false (filesystem-only auto-pause) cannot be combined with autoResume: traffic cannot wake \
             processes that are gone",
        ));
    }
    let secured = generation == Generation::V2 || new.secure == Some(true);
    let public = network.allow_public_traffic != Some(false);
    if !public && !secured {
        return Err(ApiError::bad(
            "You cannot create a sandbox without public access unless you enable secure envd access via 'secure' flag.",
        ));
    }
    let envs = new.env_vars.unwrap_or_default();
    check_variables(&envs)?;
    let secret = |wanted: bool| wanted.then(|| Secret::new(random_secret()));
    let reference = reference(&new.template_id)?;
    let layers = if is_built_in(&reference) {
        Vec::new()
    } else {
        world.shelf.pin_layers_of(&reference).ok_or_else(|| ApiError::no_template(&new.template_id))?
    };
    Ok(Origin {
        id: SandboxId::random(),
        template_id: new.template_id,
        layers,
        metadata: new.metadata.unwrap_or_default(),
        envs,
        access_token: secret(secured),
        traffic_token: secret(!public),
        limits: world.settings.limits,
        timeout_s,
        pause_on_timeout,
        pause_keeps_memory,
        auto_resume,
    })
}

fn refuse_unsupported(new: &NewSandbox, generation: Generation) -> ApiResult<()> {
    if generation == Generation::V2 && new.secure.is_some() {
        return Err(ApiError::bad(
            "secure is a field of POST /sandboxes; sandboxes of POST /v2/sandboxes are always secured",
        ));
    }
    // `allow_internet_access: true` is what older SDKs always send. It allows, and there is nothing to reach: sandboxes have
    // loopback only, which the detail and `GET /leasehold/v1/info` say. `false` is what is the case.
    let _allowed = new.allow_internet_access;
    refuse("mcp", new.mcp.as_ref())?;
    refuse("iam", new.iam.as_ref())?;
    refuse("volumeMounts", new.volume_mounts.as_ref())?;
    new.network.as_ref().map_or(Ok(()), refuse_network)
}

fn refuse_network(network: &Network) -> ApiResult<()> {
    refuse("network.allowOut", network.allow_out.as_ref())?;
    refuse("network.dnsServers", network.dns_servers.as_ref())?;
    refuse("network.egressProxy", network.egress_proxy.as_ref())?;
    refuse("network.maskRequestHost", network.mask_request_host.as_ref())?;
    refuse("network.httpsPorts", network.https_ports.as_ref())?;
    refuse("network.rules", network.rules.as_ref())?;
    // Whatever is denied here cannot be reached anyway, so a well-formed list is honoured.
    match &network.deny_out {
        None => Ok(()),
        Some(Value::Array(entries)) if entries.iter().all(Value::is_string) => Ok(()),
        Some(_) => Err(ApiError::bad("network.denyOut must be a list of texts")),
    }
}

/// Empty values ask for nothing.
fn refuse(field: &str, value: Option<&Value>) -> ApiResult<()> {
    let empty = match value {
        None | Some(Value::Null) => true,
        Some(Value::Array(entries)) => entries.is_empty(),
        Some(Value::Object(fields)) => fields.is_empty(),
        Some(_) => false,
    };
    if empty { Ok(()) } else { Err(ApiError::unsupported(field, " yet; leave it out")) }
}

fn check_variables(variables: &BTreeMap<String, String>) -> ApiResult<()> {
    for (name, value) in variables {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(ApiError::bad(format!(
                "envVars: {name:?} is not a variable name: it must not be empty or hold '=' or NUL"
            )));
        }
        if value.contains('\0') {
            return Err(ApiError::bad(format!("envVars: the value of {name:?} holds NUL")));
        }
    }
    Ok(())
}
