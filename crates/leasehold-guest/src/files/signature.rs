//! Signed URLs of `/files`: who holds the access token can hand out the right to read or write one path for a while.
//!
//! `v1_` + unpadded base64 of SHA-256 over `path:operation:username:token[:expiry]`, as E2B's SDKs compute it
//! (`get_signature` of the Python package e2b 2.63.0, seen December 2026).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest as _, Sha256};

use crate::identity::AccessToken;

/// What a signature allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Read,
    Write,
}

/// What a request for `/files` says about its right to be served.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Claim<'a> {
    /// The header `X-Access-Token`.
    pub(super) header_token: Option<&'a str>,
    /// The query's `path` as sent; empty when absent.
    pub(super) path: &'a str,
    /// The query's `username`; empty when absent.
    pub(super) username: &'a str,
    /// The query's `signature`.
    pub(super) signature: Option<&'a str>,
    /// The query's `signature_expiration`.
    pub(super) expiration: Option<&'a str>,
}

/// Why a request is refused; each is a 401, `BadExpiration` a 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("access token present in header but does not match")]
    WrongToken,
    #[error("missing signature query parameter")]
    Missing,
    #[error("invalid signature")]
    Invalid,
    #[error("signature is already expired")]
    Expired,
    #[error("signature_expiration is not a number of seconds")]
    BadExpiration,
}

/// The signature for one path. An `expiration` is unix seconds, exactly as it stands in the URL.
pub(super) fn sign(
    token: &AccessToken,
    operation: Operation,
    path: &str,
    username: &str,
    expiration: Option<i64>,
) -> String {
    let operation = match operation {
        Operation::Read => "read",
        Operation::Write => "write",
    };
    let mut hash = Sha256::new();
    for part in [path, ":", operation, ":", username, ":", token.expose()] {
        hash.update(part.as_bytes());
    }
    if let Some(expiration) = expiration {
        hash.update(format!(":{expiration}").as_bytes());
    }
    format!("v1_{}", STANDARD_NO_PAD.encode(hash.finalize()))
}

/// Checks a claim against the sandbox's token at the time `now` (unix seconds). The header, if present, decides alone; the
/// signature's equality is checked before its expiry. An expiry of 0 is an expiry in 1970, not the absence of one.
pub(super) fn check(token: &AccessToken, operation: Operation, claim: &Claim<'_>, now: i64) -> Result<(), Refused> {
    if let Some(candidate) = claim.header_token {
        return if token.matches(candidate.as_bytes()) { Ok(()) } else { Err(Refused::WrongToken) };
    }
    let signature = claim.signature.ok_or(Refused::Missing)?;
    let expiration =
        claim.expiration.map(|text| text.parse::<i64>().map_err(|_| Refused::BadExpiration)).transpose()?;
    let expected = AccessToken::new(sign(token, operation, claim.path, claim.username, expiration));
    if !expected.matches(signature.as_bytes()) {
        return Err(Refused::Invalid);
    }
    if expiration.is_some_and(|at| at <= now) {
        return Err(Refused::Expired);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> AccessToken {
        AccessToken::new("ea_secret")
    }

    #[test]
    fn a_signature_is_what_the_sdks_compute() {
        // printf '/a b:read:user:ea_secret' | openssl dgst -sha256 -binary | base64 | tr -d =
        let expected = "v1_nlOKwDs/jSnV/IK5uzRe5tURkflIgUzgKqKmQmkWk7o";
        let computed = sign(&token(), Operation::Read, "/a b", "user", None);
        assert_eq!(computed, expected);
        // printf ':write::ea_secret:1800000000' | …
        assert_eq!(
            sign(&token(), Operation::Write, "", "", Some(1_800_000_000)),
            "v1_ChoMAojzmCWkz54Q7eFwafXuNph8RQ3k4yYa0oM14UA"
        );
    }

    #[test]
    fn a_signature_holds_for_its_path_operation_user_and_time_only() {
        let signature = sign(&token(), Operation::Read, "/a", "user", Some(100));
        let claim = Claim {
            path: "/a",
            username: "user",
            signature: Some(&signature),
            expiration: Some("100"),
            ..Claim::default()
        };
        let check = |operation, claim: Claim<'_>, now| check(&token(), operation, &claim, now);
        assert_eq!(check(Operation::Read, claim, 99), Ok(()));
        assert_eq!(check(Operation::Read, claim, 100), Err(Refused::Expired));
        assert_eq!(check(Operation::Write, claim, 99), Err(Refused::Invalid));
        assert_eq!(check(Operation::Read, Claim { path: "/b", ..claim }, 99), Err(Refused::Invalid));
        assert_eq!(check(Operation::Read, Claim { username: "root", ..claim }, 99), Err(Refused::Invalid));
        assert_eq!(check(Operation::Read, Claim { expiration: Some("101"), ..claim }, 99), Err(Refused::Invalid));
        assert_eq!(check(Operation::Read, Claim { expiration: None, ..claim }, 99), Err(Refused::Invalid));
        assert_eq!(
            check(Operation::Read, Claim { expiration: Some("soon"), ..claim }, 99),
            Err(Refused::BadExpiration)
        );
        assert_eq!(check(Operation::Read, Claim { signature: None, ..claim }, 99), Err(Refused::Missing));
        assert_eq!(check(Operation::Read, Claim { signature: Some("v1_x"), ..claim }, 1000), Err(Refused::Invalid));
    }

    #[test]
    fn an_expiry_of_zero_is_over() {
        let signature = sign(&token(), Operation::Read, "/a", "", Some(0));
        let claim = Claim { path: "/a", signature: Some(&signature), expiration: Some("0"), ..Claim::default() };
        assert_eq!(check(&token(), Operation::Read, &claim, 1), Err(Refused::Expired));
    }

    #[test]
    fn a_token_in_the_header_decides_alone() {
        let signature = sign(&token(), Operation::Read, "/a", "", None);
        let claim = Claim { path: "/a", signature: Some(&signature), ..Claim::default() };
        let with = |header| check(&token(), Operation::Read, &Claim { header_token: Some(header), ..claim }, 0);
        assert_eq!(with("ea_secret"), Ok(()));
        assert_eq!(with("other"), Err(Refused::WrongToken));
        assert_eq!(with(""), Err(Refused::WrongToken));
    }
}
